//! Pod network and packet rules on plain Linux.
