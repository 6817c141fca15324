//! Persistence: one trait, a SQLite implementation, migrations.
