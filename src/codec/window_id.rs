//! Window ids: what a worker shows to say which window it holds.
//!
//! An id carries all that the service must know of the window and a MAC, so no
//! server keeps state for it and none can be made up.

use crate::model::{BranchId, Digest, Head, SessionId, TenantId, Version};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

const FORMAT: u8 = 1;
const MAC_BYTES: usize = 16;
const DIGEST_BYTES: usize = 8;

/// The window that a worker holds: what was served at one version, extended by
/// the entries of the turns up to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowId {
    /// Branch of both versions.
    pub branch: BranchId,
    /// Version at which the items were served.
    pub served: Version,
    /// Version up to which the worker extended them by what it persisted.
    pub known: Version,
    /// Window revision at which the items were served.
    pub window_revision: u64,
    /// Configuration revision at which the items were served: as long as that
    /// stays, only late results have revised the window.
    pub config_revision: u64,
    /// Number of the window state with which they were served; 0 for none.
    pub window_state: u64,
    /// Tokens to which the window was cut for its request alone; 0 if it was not.
    pub cut_to: u64,
    /// Tokens that the worker adds to each call.
    pub fixed_overhead: u64,
    /// Whether pending calls were closed.
    pub close_pending: bool,
    /// The first bytes of the receipt of `known`: tells apart logs of the same
    /// version, as after a restore of the database.
    pub receipt: ReceiptPrefix,
}

/// The first bytes of a receipt, as a window id carries them.
pub type ReceiptPrefix = [u8; DIGEST_BYTES];

impl WindowId {
    /// Whether the session is configured as it was when the items were served,
    /// as far as windows go.
    pub fn is_of_config(&self, head: &Head) -> bool {
        head.is_configured_as(self.window_revision, self.config_revision)
    }
}

/// See [`ReceiptPrefix`].
pub fn receipt_prefix(receipt: Digest) -> ReceiptPrefix {
    let mut prefix = [0; DIGEST_BYTES];
    prefix.copy_from_slice(&receipt.0[..DIGEST_BYTES]);
    prefix
}

/// Signs and checks window ids.
#[derive(Clone)]
pub struct WindowIdKey(Hmac<Sha256>);

impl std::fmt::Debug for WindowIdKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WindowIdKey")
    }
}

impl WindowIdKey {
    /// A key from the service's secret.
    pub fn new(secret: &[u8; 32]) -> Self {
        // A hash of its own, so that the secret can serve other uses too. HMAC
        // takes a key of one block.
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        let key = Sha256::new_with_prefix(b"turnkeep window id v1\n").chain_update(secret).finalize();
        block[..key.len()].copy_from_slice(&key);
        Self(Hmac::new(&block))
    }

    /// The id as text, bound to its session.
    pub fn encode(&self, tenant: &TenantId, session: &SessionId, id: &WindowId) -> String {
        let mut bytes = vec![FORMAT, u8::from(id.close_pending)];
        let numbers = [
            id.served.0,
            id.known.0,
            id.window_revision,
            id.config_revision,
            id.window_state,
            id.cut_to,
            id.fixed_overhead,
        ];
        for number in numbers {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        bytes.extend_from_slice(&id.receipt);
        bytes.extend_from_slice(id.branch.as_str().as_bytes());
        let mac = self.mac(tenant, session, &bytes).finalize().into_bytes();
        bytes.extend_from_slice(&mac[..MAC_BYTES]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The id that `text` spells, if it was made with this key for this
    /// session.
    pub fn decode(&self, tenant: &TenantId, session: &SessionId, text: &str) -> Option<WindowId> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (bytes, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC_BYTES)?)?;
        self.mac(tenant, session, bytes).verify_truncated_left(mac).ok()?;
        let (&[FORMAT, close_pending], rest) = bytes.split_first_chunk::<2>()? else { return None };
        let (served, rest) = rest.split_first_chunk()?;
        let (known, rest) = rest.split_first_chunk()?;
        let (window_revision, rest) = rest.split_first_chunk()?;
        let (config_revision, rest) = rest.split_first_chunk()?;
        let (window_state, rest) = rest.split_first_chunk()?;
        let (cut_to, rest) = rest.split_first_chunk()?;
        let (fixed_overhead, rest) = rest.split_first_chunk()?;
        let (receipt, branch) = rest.split_first_chunk()?;
        Some(WindowId {
            branch: BranchId::parse(std::str::from_utf8(branch).ok()?).ok()?,
            served: Version(u64::from_be_bytes(*served)),
            known: Version(u64::from_be_bytes(*known)),
            window_revision: u64::from_be_bytes(*window_revision),
            config_revision: u64::from_be_bytes(*config_revision),
            window_state: u64::from_be_bytes(*window_state),
            cut_to: u64::from_be_bytes(*cut_to),
            fixed_overhead: u64::from_be_bytes(*fixed_overhead),
            close_pending: close_pending != 0,
            receipt: *receipt,
        })
    }

    fn mac(&self, tenant: &TenantId, session: &SessionId, bytes: &[u8]) -> Hmac<Sha256> {
        // Ids hold no slash, so the parts cannot run into each other.
        self.0.clone().chain_update(format!("{tenant}/{session}/")).chain_update(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> WindowId {
        WindowId {
            branch: BranchId::parse("b1").unwrap(),
            served: Version(3),
            known: Version(5),
            window_state: 5,
            cut_to: 6,
            fixed_overhead: 7,
            window_revision: 2,
            config_revision: 4,
            close_pending: true,
            receipt: [7; DIGEST_BYTES],
        }
    }

    #[test]
    fn an_id_is_read_back_for_its_session_and_key_alone() {
        let (tenant, session) = (TenantId::default_tenant(), SessionId::parse("s").unwrap());
        let key = WindowIdKey::new(&[1; 32]);
        let text = key.encode(&tenant, &session, &sample());
        assert_eq!(key.decode(&tenant, &session, &text), Some(sample()));
        assert_eq!(key.decode(&tenant, &SessionId::parse("t").unwrap(), &text), None);
        assert_eq!(key.decode(&TenantId::parse("other").unwrap(), &session, &text), None);
        assert_eq!(WindowIdKey::new(&[2; 32]).decode(&tenant, &session, &text), None);
    }

    #[test]
    fn an_altered_id_is_refused() {
        let (tenant, session) = (TenantId::default_tenant(), SessionId::parse("s").unwrap());
        let key = WindowIdKey::new(&[1; 32]);
        let bytes = URL_SAFE_NO_PAD.decode(key.encode(&tenant, &session, &sample())).unwrap();
        for i in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[i] ^= 1;
            assert_eq!(key.decode(&tenant, &session, &URL_SAFE_NO_PAD.encode(altered)), None, "byte {i}");
            assert_eq!(
                key.decode(&tenant, &session, &URL_SAFE_NO_PAD.encode(&bytes[..i])),
                None,
                "cut at {i}"
            );
        }
        for text in ["", "?", "AAAA"] {
            assert_eq!(key.decode(&tenant, &session, text), None);
        }
    }
}
