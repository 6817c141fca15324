//! Types of exec calls.
