//! kubectl: one file per command.
