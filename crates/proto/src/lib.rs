//! The private wire: guest protocol and node protocol, with versions and limits.
