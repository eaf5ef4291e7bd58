//! The only source of randomness, and the place where ids are minted.

use crate::clock::Micros;
use rand::rngs::{StdRng, SysRng};
use rand::{Rng as _, SeedableRng as _};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Mints ids and secrets.
pub struct Entropy(Mutex<StdRng>);

impl std::fmt::Debug for Entropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entropy")
    }
}

impl Entropy {
    /// Randomness of the operating system.
    pub fn from_os() -> Self {
        #[expect(
            clippy::expect_used,
            reason = "without randomness no id can be minted, so the process must not start"
        )]
        let rng = StdRng::try_from_rng(&mut SysRng).expect("the operating system gives randomness");
        Self(Mutex::new(rng))
    }

    /// The process's own, for ids that only tell things apart, such as errors in
    /// a log.
    pub fn of_process() -> &'static Self {
        static PROCESS: LazyLock<Entropy> = LazyLock::new(Entropy::from_os);
        &PROCESS
    }

    /// The same ids for the same seed, for tests.
    pub fn from_seed(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// Random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut bytes);
        bytes
    }

    /// An id that sorts by the time of its minting: a version 7 UUID as 32 hex
    /// digits.
    pub fn id(&self, now: Micros) -> String {
        let millis = u64::try_from(now.0 / 1000).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(millis, &self.bytes()).into_uuid().simple().to_string()
    }

    /// Random hex digits, two for each byte.
    pub fn hex<const N: usize>(&self) -> String {
        use std::fmt::Write as _;
        self.bytes::<N>().iter().fold(String::with_capacity(2 * N), |mut hex, byte| {
            // Writing to a string cannot fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }
}
