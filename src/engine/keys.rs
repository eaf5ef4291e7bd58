//! Keys of blobs.

use crate::codec::digest;
use crate::entropy::Entropy;
use crate::model::{BranchId, GenerationId, OutputId, Seq, SessionId, TenantId, Version};
use crate::store::meta::SessionKey;

/// Prefix of the deletion ledger.
pub(super) const LEDGER: &str = "ledger/";

/// Hex digits of randomness that begin a key, so that an object store can split
/// its prefixes.
const LEAD_DIGITS: usize = 2;

/// A fresh key for a segment: `{random}/{tenant}/{branch}/s-{first seq}-g{generation}-{random}`.
pub(super) fn segment(
    entropy: &Entropy,
    tenant: &TenantId,
    branch: &BranchId,
    first: Seq,
    generation: GenerationId,
) -> String {
    fresh(entropy, tenant, branch, &format!("s-{first:012}"), generation)
}

/// A fresh key for a manifest.
pub(super) fn manifest(
    entropy: &Entropy,
    tenant: &TenantId,
    branch: &BranchId,
    version: Version,
    generation: GenerationId,
) -> String {
    fresh(entropy, tenant, branch, &format!("m-{version:012}"), generation)
}

/// A fresh key for a tool output.
pub(super) fn output(
    entropy: &Entropy,
    tenant: &TenantId,
    branch: &BranchId,
    output: &OutputId,
    generation: GenerationId,
) -> String {
    fresh(entropy, tenant, branch, &format!("o-{output}"), generation)
}

fn fresh(
    entropy: &Entropy,
    tenant: &TenantId,
    branch: &BranchId,
    what: &str,
    generation: GenerationId,
) -> String {
    let random = entropy.hex::<16>();
    let (lead, rest) = random.split_at(LEAD_DIGITS);
    // Tenants are named by a hash: their ids are the operator's, and may hold
    // characters that keys do not.
    let tenant = &digest::sha256(tenant.as_str().as_bytes()).to_string()[..16];
    format!("{lead}/{tenant}/{branch}/{what}-g{generation}-{rest}.zst")
}

/// The key of a session's entry in the deletion ledger.
pub(super) fn ledger(key: &SessionKey) -> String {
    let SessionKey { tenant, session } = key;
    format!("{LEDGER}{}", digest::sha256(format!("{tenant}/{session}").as_bytes()))
}

/// The writer generation in a key; none if it has no such thing.
pub(super) fn generation(key: &str) -> Option<GenerationId> {
    let (_, file) = key.rsplit_once('/')?;
    let (_, rest) = file.split_once("-g")?;
    let (generation, _) = rest.split_once('-')?;
    generation.parse().ok().map(GenerationId)
}

/// What a key is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Segment,
    Manifest,
    Output,
}

/// What a key is of; none if it is neither segment nor manifest nor output.
pub(super) fn kind(key: &str) -> Option<Kind> {
    let (_, file) = key.rsplit_once('/')?;
    generation(key)?;
    match file.get(..2)? {
        "s-" => Some(Kind::Segment),
        "m-" => Some(Kind::Manifest),
        "o-" => Some(Kind::Output),
        _ => None,
    }
}

/// A session's entry in the deletion ledger.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct LedgerEntry {
    pub(super) turnkeep: String,
    pub(super) tenant: TenantId,
    pub(super) session: SessionId,
    pub(super) deleted_at: crate::clock::Micros,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_their_kind_and_generation() {
        let entropy = Entropy::from_seed(1);
        let (tenant, branch) = (TenantId::parse("ACME:1").unwrap(), BranchId::parse("b1").unwrap());
        let segment = segment(&entropy, &tenant, &branch, Seq(7), GenerationId(42));
        assert_eq!(generation(&segment), Some(GenerationId(42)));
        assert_eq!(kind(&segment), Some(Kind::Segment));
        let manifest = manifest(&entropy, &tenant, &branch, Version(7), GenerationId(3));
        assert_eq!((generation(&manifest), kind(&manifest)), (Some(GenerationId(3)), Some(Kind::Manifest)));
        let id = OutputId::parse("0f").unwrap();
        let output = output(&entropy, &tenant, &branch, &id, GenerationId(4));
        assert_eq!((generation(&output), kind(&output)), (Some(GenerationId(4)), Some(Kind::Output)));
        for other in ["ledger/ab", "probe/create-only", "x", "", "a/s-1-gx-1"] {
            assert_eq!((generation(other), kind(other)), (None, None), "{other}");
        }
    }

    #[test]
    fn keys_never_hold_a_callers_id() {
        let key = SessionKey {
            tenant: TenantId::parse("T").unwrap(),
            session: SessionId::parse("secret").unwrap(),
        };
        assert!(!ledger(&key).contains("secret"));
    }
}
