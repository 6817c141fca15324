//! What can be asked of `cargo xtask`.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

/// Developer tasks of this workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, arg_required_else_help = true)]
#[command(
    after_help = "Start here on a fresh machine:  cargo xtask ci\nWhile you work:               cargo xtask fmt && \
                        cargo xtask check-edges && cargo nextest run -p runtime-model"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Install what the tests need, then run every check. This is what CI runs.
    ///
    /// Steps, in order, stopping at the first that fails: host packages and cargo tools, formatting, import edges,
    /// clippy, release build, `runtime setup` (sandbox engine, disk pool, base image), the committed OpenAPI
    /// document, all tests, the Python and TypeScript clients, dependency rules. Asks nothing. Needs Debian 12 and root, since
    /// sandboxes do. Sets up /var/lib/runtime and touches nothing in your home directory but cargo's own tools and
    /// npm's cache.
    #[command(after_help = "CARGO_TARGET_DIR is honoured; without it the build goes to target/ in this clone.")]
    Ci,

    /// Check who imports whom, that only crates/host may hold `unsafe`, and that dependencies are pinned at the root.
    ///
    /// Reads manifests only: no build, no network. The table it enforces is in xtask/src/edges/table.rs; a new edge
    /// is a design decision and takes a line in docs/decisions/ in the same change.
    CheckEdges,

    /// Check formatting; with `--write`, put it right.
    Fmt {
        /// Rewrite the files instead of reporting them.
        #[arg(long)]
        write: bool,
    },

    /// Clippy over every crate, test and bench, in the profile that tests use; a warning is a failure.
    ///
    /// What a rule forbids and why is written beside it in clippy.toml.
    Lint,

    /// Build the product, then run tests with cargo-nextest in the release profile.
    #[command(
        after_help = "Examples:\n  cargo xtask test\n  cargo xtask test -- -p runtime-model\n  cargo xtask test -- \
                            -E 'test(exec)' --no-capture"
    )]
    Test {
        /// Passed to `cargo nextest run`; without any, the whole workspace is tested.
        #[arg(last = true, value_name = "NEXTEST ARGS")]
        nextest: Vec<OsString>,
    },

    /// Licences, forbidden crates and sources of all dependencies, by deny.toml.
    Deny,

    /// Build the product, then check the Python client: lints, types, the wheel, and its tests against the product.
    ///
    /// Makes Python environments in the target directory and installs the tools of sdk/python/requirements-dev.txt
    /// into them.
    SdkPython,

    /// Build the product, then check the TypeScript client: lints, types, what it exports, and its tests against the
    /// product.
    ///
    /// Installs the packages of sdk/typescript/package-lock.json into its node_modules, and a newer Node.js there where
    /// the system's is older than 20.19. Needs Debian's chromium, which `setup-tests` installs.
    SdkTypescript,

    /// Only the set-up part of `ci`: packages, cargo tools, the product's build, `runtime setup`.
    ///
    /// Each part looks before it acts, so a second run changes nothing.
    SetupTests,

    /// Write openapi/openapi.json from the built program.
    Openapi {
        /// Compare with the committed file and fail where they differ, writing nothing.
        #[arg(long)]
        check: bool,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn nextest_arguments_come_after_two_dashes() {
        let args = Args::try_parse_from(["xtask", "test", "--", "-p", "runtime-model"]).unwrap();
        let Task::Test { nextest } = args.task else { panic!("{args:?}") };
        assert_eq!(nextest, ["-p", "runtime-model"]);
        assert!(Args::try_parse_from(["xtask", "test", "-p", "runtime-model"]).is_err());
    }
}
