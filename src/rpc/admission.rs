//! Admission: how many bytes of requests may be in the process at the same time.
//!
//! The first five bytes of a request say how large its message is
//! (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>), so it can
//! wait for room before the rest is read: until then it takes no more than the
//! window of its connection.

use super::status::to_status;
use crate::clock;
use crate::engine::Error;
use crate::limits::{
    ADMISSION_SMALL_BYTES, REQUEST_BYTES_MAX, REQUEST_BYTES_PER_SECOND_MIN, REQUEST_START_TIMEOUT,
};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body as _, Frame};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tower::Layer;

/// Begins the paths of the methods that this is about: each takes one message.
const OURS: &str = "/turnkeep.v1.";
/// The method whose requests are admitted whatever their size; those of others
/// are small, save by mistake.
const PERSIST: &str = "/turnkeep.v1.TranscriptService/PersistTranscript";

/// The method whose requests are streams: it has its own bounds for them.
const OFFLOAD: &str = "/turnkeep.v1.ToolOutputService/OffloadToolOutput";

/// Lets in as many bytes of requests as there is room for.
#[derive(Clone, Debug)]
pub struct Admission {
    room: Arc<Semaphore>,
    limit: u64,
    wait: Duration,
    /// How long a request may take to begin.
    start: Duration,
}

/// Room that a request has taken; it is given back when the last clone goes.
#[derive(Clone, Debug)]
pub(super) struct Room {
    _permit: Arc<OwnedSemaphorePermit>,
}

impl Admission {
    /// Room for so many bytes, but never less than the largest request takes;
    /// a request waits so long for its part.
    pub fn new(bytes: u64, wait: Duration) -> Self {
        let limit = bytes.max(REQUEST_BYTES_MAX as u64);
        let permits = usize::try_from(limit).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(permits)), limit, wait, start: REQUEST_START_TIMEOUT }
    }

    /// Reads the beginning of a request and takes room for all of it. Returns
    /// the request with its room, which is among its extensions too.
    async fn admit(&self, request: Request<Body>) -> Result<(Request<Body>, Option<Room>), Status> {
        let is_persist = request.uri().path() == PERSIST;
        let (mut parts, body) = request.into_parts();
        let mut body = Arriving { first: VecDeque::new(), rest: body, late: None };
        let length = clock::deadline(self.start, body.message_bytes())
            .await
            .unwrap_or_else(|| Err(to_status(&Error::DeadlineExceeded)))?;
        let room = match length {
            // What is too large is refused by its length.
            Some(bytes) if bytes <= REQUEST_BYTES_MAX && (is_persist || bytes > ADMISSION_SMALL_BYTES) => {
                let room = self.take(bytes).await?;
                parts.extensions.insert(room.clone());
                Some(room)
            }
            _ => None,
        };
        let seconds = length.unwrap_or(0) / REQUEST_BYTES_PER_SECOND_MIN;
        let time = self.start + Duration::from_secs(seconds as u64);
        body.late = Some(Box::pin(clock::sleep(time)));
        Ok((Request::from_parts(parts, Body::new(body)), room))
    }

    async fn take(&self, bytes: usize) -> Result<Room, Status> {
        let permits = u32::try_from(bytes.max(ADMISSION_SMALL_BYTES)).unwrap_or(u32::MAX);
        let room = clock::deadline(self.wait, self.room.clone().acquire_many_owned(permits)).await;
        if let Some(Ok(permit)) = room {
            return Ok(Room { _permit: Arc::new(permit) });
        }
        metrics::counter!("turnkeep_overloaded_total").increment(1);
        Err(to_status(&Error::Overloaded { limit: self.limit }))
    }
}

/// A body whose beginning was read, and whose rest must come in time.
struct Arriving {
    first: VecDeque<Frame<Bytes>>,
    rest: Body,
    /// Ends when the rest is late.
    late: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Arriving {
    /// Reads as much as says how many bytes the message has; nothing if the body
    /// ends before.
    async fn message_bytes(&mut self) -> Result<Option<usize>, Status> {
        // A byte that says whether it is compressed, and four of the length.
        let mut header = Vec::with_capacity(5);
        while header.len() < 5 {
            let frame = poll_fn(|context| Pin::new(&mut self.rest).poll_frame(context)).await;
            let Some(frame) = frame.transpose()? else { return Ok(None) };
            let missing = 5 - header.len();
            header.extend(frame.data_ref().into_iter().flatten().take(missing));
            let is_end = frame.is_trailers();
            self.first.push_back(frame);
            if is_end {
                return Ok(None);
            }
        }
        let length = header.last_chunk().map_or(0, |length| u32::from_be_bytes(*length));
        Ok(Some(usize::try_from(length).unwrap_or(usize::MAX)))
    }
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(frame) = self.first.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let polled = Pin::new(&mut self.rest).poll_frame(context);
        if polled.is_pending()
            && let Some(late) = &mut self.late
            && late.as_mut().poll(context).is_ready()
        {
            self.late = None;
            return Poll::Ready(Some(Err(to_status(&Error::DeadlineExceeded))));
        }
        polled
    }
}

impl<S> Layer<S> for Admission {
    type Service = Admitting<S>;

    fn layer(&self, inner: S) -> Admitting<S> {
        Admitting { inner, admission: self.clone() }
    }
}

/// A service behind an [`Admission`].
#[derive(Clone, Debug)]
pub struct Admitting<S> {
    inner: S,
    admission: Admission,
}

impl<S> Service<Request<Body>> for Admitting<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that was polled is ready; a clone need not be.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let path = request.uri().path();
        if !path.starts_with(OURS) || path == OFFLOAD {
            return Box::pin(inner.call(request));
        }
        let admission = self.admission.clone();
        Box::pin(async move {
            match admission.admit(request).await {
                Ok((request, room)) => {
                    let response = inner.call(request).await;
                    drop(room);
                    response
                }
                Err(status) => Ok(status.into_http()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tokio::sync::mpsc;
    use tonic::Code;
    use tonic_types::StatusExt as _;
    use tower::ServiceExt as _;

    const OTHER: &str = "/turnkeep.v1.SessionService/CreateSession";
    const LARGE: usize = 20 << 20;

    /// A body that arrives as the test sends it.
    struct Sent(mpsc::UnboundedReceiver<Bytes>);

    impl http_body::Body for Sent {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.0.poll_recv(context).map(|data| data.map(|data| Ok(Frame::data(data))))
        }
    }

    /// A request of so many bytes, and what the rest of it is sent by.
    fn request(path: &str, bytes: usize) -> (Request<Body>, mpsc::UnboundedSender<Bytes>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let [a, b, c, d] = u32::try_from(bytes).unwrap().to_be_bytes();
        // The length comes in two pieces.
        for piece in [vec![0, a, b], vec![c, d, b'x']] {
            sender.send(piece.into()).unwrap();
        }
        let request = Request::builder().uri(path).body(Body::new(Sent(receiver))).unwrap();
        (request, sender)
    }

    async fn all_of(mut body: Body) -> Result<Vec<u8>, Status> {
        let mut all = Vec::new();
        while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            all.extend(frame?.into_data().unwrap());
        }
        Ok(all)
    }

    fn admission(wait: Duration) -> Admission {
        Admission::new(0, wait)
    }

    #[tokio::test]
    async fn a_request_that_finds_no_room_is_refused_and_may_come_again() {
        let admission = admission(Duration::ZERO);
        let (first, _) = request(PERSIST, LARGE);
        let (first, room) = admission.admit(first).await.unwrap();
        let kept: Room = first.extensions().get::<Room>().cloned().unwrap();
        drop((first, room));
        // Whoever works on it still has its room.
        let refused = admission.admit(request(PERSIST, LARGE).0).await.unwrap_err();
        let details = refused.get_error_details();
        assert_eq!(
            (refused.code(), &details.error_info().unwrap().reason[..]),
            (Code::Unavailable, "OVERLOADED")
        );
        assert!(details.retry_info().is_some());
        // What fits is let in, and so is what is not counted.
        admission.admit(request(PERSIST, 1 << 20).0).await.unwrap();
        admission.admit(request(OTHER, ADMISSION_SMALL_BYTES).0).await.unwrap();
        admission.admit(request(PERSIST, REQUEST_BYTES_MAX + 1).0).await.unwrap();
        // But for its method it is the same.
        assert_eq!(admission.admit(request(OTHER, LARGE).0).await.unwrap_err().code(), Code::Unavailable);
        drop(kept);
        admission.admit(request(PERSIST, LARGE).0).await.unwrap();
    }

    #[tokio::test]
    async fn a_request_waits_for_room_and_comes_in_whole() {
        let admission = admission(Duration::from_mins(1));
        let (first, room) = admission.admit(request(PERSIST, LARGE).0).await.unwrap();
        let (second, rest) = request(PERSIST, LARGE);
        let echo = tower::service_fn(|request: Request<Body>| async {
            Ok::<_, Infallible>(Response::new(request.into_body()))
        });
        let mut answer = Box::pin(admission.layer(echo).oneshot(second));
        assert!(futures::poll!(&mut answer).is_pending());
        drop((first, room));
        let answer = answer.await.unwrap();
        for piece in ["yz", "!"] {
            rest.send(piece.into()).unwrap();
        }
        drop(rest);
        let length = u32::try_from(LARGE).unwrap().to_be_bytes();
        assert_eq!(all_of(answer.into_body()).await.unwrap(), [&[0], &length[..], b"xyz!"].concat());
    }

    #[tokio::test]
    async fn a_request_that_stops_arriving_gives_its_room_back() {
        let admission = Admission { start: Duration::from_millis(20), ..admission(Duration::from_mins(1)) };
        let (sender, receiver) = mpsc::unbounded_channel();
        let silent = Request::builder().uri(PERSIST).body(Body::new(Sent(receiver))).unwrap();
        assert_eq!(admission.admit(silent).await.unwrap_err().code(), Code::DeadlineExceeded);
        drop(sender);
        // Its length is small, so it has no seconds more.
        let (stalled, sender) = request(PERSIST, 1_000);
        let (stalled, room) = admission.admit(stalled).await.unwrap();
        let late = all_of(stalled.into_body()).await.unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded);
        drop((room, sender));
        // An end without a message is the decoder's affair.
        let empty = Request::builder().uri(PERSIST).body(Body::empty()).unwrap();
        let (empty, room) = admission.admit(empty).await.unwrap();
        assert!(room.is_none());
        assert_eq!(all_of(empty.into_body()).await.unwrap(), b"");
    }
}
