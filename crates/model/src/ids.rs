//! Typed ids, so that one kind cannot be passed for another.

use newtype_uuid::{TypedUuid, TypedUuidKind, TypedUuidTag};

macro_rules! id {
    ($kind:ident, $name:ident, $tag:literal, $doc:literal) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kind {}
        impl TypedUuidKind for $kind {
            fn tag() -> TypedUuidTag {
                const TAG: TypedUuidTag = TypedUuidTag::new($tag);
                TAG
            }
        }
        #[doc = $doc]
        pub type $name = TypedUuid<$kind>;
    };
}

id!(SandboxKind, SandboxId, "sandbox", "A sandbox. Lower-case with dashes on the wire; 32 hex digits on the host.");
id!(SnapshotKind, SnapshotId, "snapshot", "A snapshot. Spelt like the id of a sandbox.");
id!(CredentialKind, CredentialId, "credential", "An API key.");
id!(SessionKind, SessionId, "session", "A browser's way into one sandbox.");
id!(PrincipalKind, PrincipalId, "principal", "Who a key acts for.");
id!(OrgKind, OrgId, "org", "The organization that owns everything on a data directory.");
