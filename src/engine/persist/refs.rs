//! Entries that a persist changed, found by the storage refs in them.

use crate::engine::{Engine, Error};
use crate::model::{Digest, Output, OutputId, OutputName};
use crate::store::meta::SessionKey;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use std::collections::HashMap;

/// Most outputs that are looked up one by one.
const LOOKUPS_MAX: usize = 8;

/// What begins a storage ref, however its slashes are escaped.
const SCHEME: &[u8] = b"turnkeep:";

/// What begins a text in Base64 that stands in place of media and begins with the ref:
/// that of `[... turnkeep:`, as far as it says nothing of what follows.
const ENCODED: &[u8] = b"Wy4uLiB0dXJua2VlcD";

/// The outputs that entries name, as far as it matters which: of more than
/// [`LOOKUPS_MAX`] all of the session's outputs are read.
#[derive(Debug, Default)]
pub(in crate::engine) struct Refs(Vec<OutputId>);

impl Refs {
    /// Takes in those of an entry.
    pub(in crate::engine) fn add(&mut self, payload: &[u8]) {
        /// As long as what begins with a ref, in whole groups of Base64.
        const ENCODED_BYTES: usize = 800;
        self.add_plain(payload);
        for at in memchr::memmem::find_iter(payload, ENCODED) {
            let text = payload.get(at..).unwrap_or_default();
            let is_base64 = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
            let length = text.iter().take(ENCODED_BYTES).take_while(is_base64).count();
            let groups = text.get(..length / 4 * 4).unwrap_or_default();
            self.add_plain(&STANDARD_NO_PAD.decode(groups).unwrap_or_default());
        }
    }

    fn add_plain(&mut self, payload: &[u8]) {
        /// Longest ref, with all slashes escaped.
        const REF_BYTES_MAX: usize = 512;
        for at in memchr::memmem::find_iter(payload, SCHEME) {
            if self.0.len() > LOOKUPS_MAX {
                return;
            }
            let rest = payload.get(at..).unwrap_or_default();
            let is_of_ref = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._:-".contains(byte);
            let text = rest.iter().take(REF_BYTES_MAX).filter(|byte| **byte != b'\\').copied();
            let text: String = text.take_while(is_of_ref).map(char::from).collect();
            if let Ok(name) = OutputName::parse(&text)
                && !self.0.contains(&name.output)
            {
                self.0.push(name.output);
            }
        }
    }
}

impl Engine {
    /// Of entries that a persist of the session changed the digests as they were
    /// received, by those as they were stored; all that there are of `refs` at least.
    pub(in crate::engine) async fn received_by_stored(
        &self,
        key: &SessionKey,
        Refs(refs): &Refs,
    ) -> Result<HashMap<Digest, Digest>, Error> {
        const PAGE: u32 = 1_000;
        let mut received = HashMap::new();
        let mut add = |output: &Output| {
            received.extend(output.entry.map(|entry| (entry.stored, entry.received)));
        };
        if refs.len() <= LOOKUPS_MAX {
            for id in refs {
                self.inner.meta.output(key, id).await?.iter().for_each(&mut add);
            }
            return Ok(received);
        }
        let mut before = None;
        loop {
            let outputs = self.inner.meta.outputs(key, before.as_ref(), PAGE).await?;
            outputs.iter().for_each(&mut add);
            match outputs.into_iter().last() {
                Some(last) => before = Some(last.id),
                None => return Ok(received),
            }
        }
    }
}
