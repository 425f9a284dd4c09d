"""Data sets: readers of published benchmarks as their archives unpack, and of tables, texts, images and features.

A module for each task (`retrieval`, `captions`, `memorability`, `multi_label`) has, for every data set, its reader, the
function that makes data of the task from it, and its `Layout`, an entry in what ``sodeep compare --data`` may be.
`revisited` has those of Revisited Oxford and Paris; `texts` and `image_features` turn texts and images into features
that are computed before training. The data classes of the tasks, arrays and strings only, are in
`sodeep.datasets.types`. Import from the modules; nothing is downloaded.
"""
