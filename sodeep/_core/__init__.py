"""The ground that all other modules stand on: checks, files, precision, sorting. It knows no loss and no sorter."""
