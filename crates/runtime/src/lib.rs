//! Containers on plain Linux: shims, namespaces, cgroups, mounts and images.
