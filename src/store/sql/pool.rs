//! Connections that are kept open.
//!
//! sqlx's own pool tests a connection each time that one is given back, with a
//! task and a round trip, which costs as much as a statement. Here a connection
//! is given back only where it is known to be in order, and closed everywhere
//! else: dropping a [`Lease`] closes it.

use futures::future::BoxFuture;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

type Open<C> = Box<dyn Fn() -> BoxFuture<'static, sqlx::Result<C>> + Send + Sync>;

/// Up to so many connections of one kind. Cloning is cheap.
pub(super) struct Pool<C> {
    inner: Arc<Inner<C>>,
}

struct Inner<C> {
    open: Open<C>,
    /// Those that nobody uses; the last was used last.
    idle: Mutex<Vec<C>>,
    /// One for each connection that may be in use.
    permits: Arc<Semaphore>,
    /// How long a caller waits for a connection.
    timeout: Duration,
}

impl<C> fmt::Debug for Pool<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("permits", &self.inner.permits).finish_non_exhaustive()
    }
}

impl<C> Pool<C> {
    /// A pool without connections yet; `open` makes them when they are needed.
    pub(super) fn new(
        connections: u32,
        timeout: Duration,
        open: impl Fn() -> BoxFuture<'static, sqlx::Result<C>> + Send + Sync + 'static,
    ) -> Self {
        let permits = usize::try_from(connections.max(1)).unwrap_or(Semaphore::MAX_PERMITS);
        let (open, permits) = (Box::new(open), Arc::new(Semaphore::new(permits)));
        Self { inner: Arc::new(Inner { open, idle: Mutex::default(), permits, timeout }) }
    }

    /// A connection; waits in line if all are in use.
    pub(super) async fn acquire(&self) -> sqlx::Result<Lease<C>> {
        let inner = &self.inner;
        let connect = async {
            let permit = inner.permits.clone().acquire_owned().await.map_err(|_| sqlx::Error::PoolClosed)?;
            let idle = inner.idle().pop();
            let was_idle = idle.is_some();
            let connection = match idle {
                Some(connection) => connection,
                None => (inner.open)().await?,
            };
            Ok(Lease { connection, was_idle, pool: inner.clone(), _permit: permit })
        };
        crate::clock::deadline(inner.timeout, connect).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }
}

impl<C> Inner<C> {
    fn idle(&self) -> MutexGuard<'_, Vec<C>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in use. Dropped, it is closed.
pub(super) struct Lease<C> {
    connection: C,
    was_idle: bool,
    pool: Arc<Inner<C>>,
    _permit: OwnedSemaphorePermit,
}

impl<C> Lease<C> {
    /// Gives the connection back. It must be in order: nothing under way, no
    /// transaction open.
    pub(super) fn give_back(self) {
        let Self { connection, was_idle: _, pool, _permit } = self;
        pool.idle().push(connection);
    }

    /// Whether it was used before. The other end may have closed it since.
    pub(super) fn was_idle(&self) -> bool {
        self.was_idle
    }
}

impl<C> Deref for Lease<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.connection
    }
}

impl<C> DerefMut for Lease<C> {
    fn deref_mut(&mut self) -> &mut C {
        &mut self.connection
    }
}
