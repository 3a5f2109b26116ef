//! The HTTP side of the API: filters, verbs, discovery, OpenAPI and streams.
