//! End-to-end suites that run the built programs.
