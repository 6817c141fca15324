//! The public HTTP contract: request and response types, the error body, a typed client.
