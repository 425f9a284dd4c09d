"""Data of the tasks: readers of published data sets as their archives unpack, of tables, texts, images and features.

A module for each task has, for every data set, its reader, what turns that into data of the task, and its `Layout`, the
entry in what ``--data`` may be. Nothing is downloaded.
"""
