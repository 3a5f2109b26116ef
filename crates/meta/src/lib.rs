//! Objects, names, selectors, quantities, field errors and Status: the words of the Kubernetes API without any I/O.
