//! The only source of time.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch: the form of all times in storage.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub i64);

impl Micros {
    /// The time that lies `by` later.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// The time that lies `by` earlier.
    #[must_use]
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }
}

/// Tells the time.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    /// The wall clock's time. It may jump; nothing but labels, leases and pauses
    /// after failures rests on it.
    fn now(&self) -> Micros;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    fn now(&self) -> Micros {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
    }
}

/// A clock that tests set.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `at`.
    pub fn new(at: Micros) -> Self {
        Self(AtomicI64::new(at.0))
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        Micros(self.0.load(Ordering::SeqCst))
    }
}

/// Measures how long something takes, for metrics and progress.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the monotonic clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The time by which something has to be done, whatever it takes.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    since: Stopwatch,
    allowed: Duration,
}

impl Deadline {
    /// So long from now.
    pub fn after(allowed: Duration) -> Self {
        Self { since: Stopwatch::start(), allowed }
    }

    /// Time that is left; zero when it has passed.
    pub fn left(&self) -> Duration {
        self.allowed.saturating_sub(self.since.elapsed())
    }
}

/// Waits.
#[cfg(feature = "server")]
#[expect(clippy::disallowed_methods, reason = "this is the one place that waits")]
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Gives a future so long to finish; nothing if it does not.
#[cfg(feature = "server")]
#[expect(clippy::disallowed_methods, reason = "this is the one place that waits")]
pub async fn deadline<F: Future>(duration: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(duration, future).await.ok()
}
