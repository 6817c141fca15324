//! The control plane: HTTP handlers, auth, operations with undo, reconcilers.
