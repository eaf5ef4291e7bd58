//! Work that its caller cannot cut.

use super::Error;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Work that runs in its caller's task and, should the caller be dropped before
/// its end, goes on in one of its own.
pub(super) struct Detached<T: Send + 'static> {
    /// None while it is polled and once it has ended.
    work: Option<BoxFuture<'static, Result<T, Error>>>,
    runtime: Handle,
}

impl<T: Send + 'static> Detached<T> {
    /// Begins some work, unless the tracker is closed.
    pub(super) fn begin(
        tasks: &TaskTracker,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<Self, Error> {
        // First the token: whoever waits for a closed tracker waits for this.
        let token = tasks.token();
        if tasks.is_closed() {
            return Err(Error::Draining);
        }
        let work = async move {
            let result = AssertUnwindSafe(work).catch_unwind().await;
            drop(token);
            result.unwrap_or_else(|_| Err(Error::internal("a task panicked")))
        };
        Ok(Self { work: Some(Box::pin(work)), runtime: Handle::current() })
    }
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn work_whose_caller_is_gone_goes_on_to_its_end() {
        let tasks = TaskTracker::new();
        let (go_on, told) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel::<()>();
        let work = async move {
            told.await.unwrap();
            done.send(()).unwrap();
            Ok(())
        };
        let mut detached = Box::pin(Detached::begin(&tasks, work).unwrap());
        assert!(futures::poll!(detached.as_mut()).is_pending());
        drop(detached);
        tasks.close();
        assert!(futures::poll!(Box::pin(tasks.wait())).is_pending());
        go_on.send(()).unwrap();
        ended.await.unwrap();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn work_gives_its_result_once_and_a_panic_is_an_error() {
        let tasks = TaskTracker::new();
        assert_eq!(Detached::begin(&tasks, async { Ok(7) }).unwrap().await.unwrap(), 7);
        let panics = Detached::begin(&tasks, async { panic!("on purpose") }).unwrap();
        let result: Result<(), _> = panics.await;
        assert!(matches!(result, Err(Error::Internal { .. })));
        tasks.close();
        assert!(matches!(Detached::begin(&tasks, async { Ok(()) }), Err(Error::Draining)));
        tasks.wait().await;
    }
}
