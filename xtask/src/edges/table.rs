//! Who may import whom. Arrows point down only; a new one is a design decision: it is added here and in
//! `docs/architecture.md`, with a record in `docs/decisions/`, in one change.

/// The name of the binary's package; every other room is `runtime-<room>`.
pub(crate) const BINARY: &str = "runtime";

/// A room, and the rooms it may import.
pub(crate) const ROOMS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("service", &[]),
    ("host", &[]),
    ("proto", &["model"]),
    ("api", &["model"]),
    ("store", &["model"]),
    ("images", &["model"]),
    ("egress", &["model", "proto", "service"]),
    ("agent", &["proto", "host"]),
    ("engine", &["model", "proto", "host", "images", "service"]),
    ("server", &["model", "api", "proto", "store", "images", "service"]),
    ("cli", &["model", "api", "service"]),
    ("runtime", &["cli", "server", "engine", "egress", "service"]),
];

/// Around the product: these may import anything, each other included, and no room imports them, except tests.
pub(crate) const AROUND: &[&str] = &["test-kit", "e2e", "bench", "xtask"];

/// What a room's own tests may use beside what the room itself may import.
pub(crate) const FOR_TESTS: &[&str] = &["test-kit"];

/// The one room with `unsafe` in it.
pub(crate) const UNSAFE: &str = "host";

/// Crates that belong to some rooms alone, and why. The packages around the product are free.
pub(crate) const RESERVED: &[(&str, &[&str], &str)] = &[
    ("sqlx", &["store"], "only store speaks SQL"),
    ("rustls", &["service", "egress"], "TLS configurations are built in one place, so that their policy is one"),
    ("rmcp", &["server"], "it follows a protocol that moves: one module speaks it"),
    ("anyhow", &["cli", "runtime"], "a room's errors are types that name step, object and cause"),
];
