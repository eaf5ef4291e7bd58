//! The server around the services: health, reflection, probes, and how it
//! stops.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend};
use pb::WireFormat::OpenaiChat;
use service::{SESSION, Service, append, eventually, of_format};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
use turnkeep::entropy::Entropy;
use turnkeep::rpc::pb;
use turnkeep::settings::SealWhen;
use turnkeep::store::faulty::Fault;

on_all_backends!(a_stop_lets_calls_in_progress_finish);
on_embedded_backend!(
    a_stop_that_cuts_a_call_off_still_finishes_its_commit,
    health_tells_whether_it_serves,
    a_stop_does_not_wait_for_those_who_watch_its_health,
    reflection_describes_both_services_in_both_versions,
    reflection_can_be_turned_off,
    probes_answer_over_http,
    a_service_that_drains_takes_no_turns,
    a_persist_keeps_its_room_until_its_commit_even_if_its_caller_is_gone,
    a_data_directory_has_one_service,
    a_service_that_starts_while_the_object_store_is_down_takes_turns,
);

/// Persists a turn that takes a while, and stops the service while it is under
/// way. Returns what came of it.
async fn stopped_while_persisting(
    backend: &Backend,
    drain_grace_seconds: u64,
) -> Result<pb::PersistTranscriptResponse, service::Refusal> {
    let (service, faulty) = Service::start_faulty(backend, |settings| {
        settings.seal.when = SealWhen::EveryTurn;
        settings.server.drain_grace_seconds = drain_grace_seconds;
    })
    .await;
    service.create("s", of_format(OpenaiChat)).await;
    faulty.set(Fault::Slow(Duration::from_millis(300)));
    let puts = faulty.puts();
    let mut client = service.client.transcripts.clone();
    let call = tokio::spawn(async move { client.persist_transcript(append(SESSION, "r", &["{}"])).await });
    eventually("the turn is on its way", async || faulty.puts() > puts).await;
    service.stop().await;
    Ok(call.await.unwrap()?.into_inner())
}

async fn a_stop_lets_calls_in_progress_finish(backend: Backend) {
    let answer = Box::pin(stopped_while_persisting(&backend, 25)).await.unwrap();
    assert_eq!(answer.version, 1);
    let service = Service::start(&backend).await;
    assert_eq!(service.turns(SESSION).await[0].receipt, answer.receipt);
}

async fn a_stop_that_cuts_a_call_off_still_finishes_its_commit(backend: Backend) {
    // Whether the answer still goes out is the connection's affair.
    drop(Box::pin(stopped_while_persisting(&backend, 0)).await);
    let service = Service::start(&backend).await;
    assert_eq!(service.read(SESSION).await.payloads(), ["{}"]);
    assert_eq!(service.persist(append(SESSION, "r", &["{}"])).await.unwrap().version, 1);
}

async fn health_tells_whether_it_serves(backend: Backend) {
    let service = Service::start_with(&backend, |settings| settings.server.drain_grace_seconds = 1).await;
    let mut client = HealthClient::new(service.channel().await);
    let of = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for name in ["", "turnkeep.v1.SessionService", "turnkeep.v1.TranscriptService"] {
        eventually("it serves", async || {
            let answer = client.clone().check(of(name)).await;
            answer.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving)
        })
        .await;
    }
    assert_eq!(client.check(of("turnkeep.v1.Nothing")).await.unwrap_err().code(), Code::NotFound);
    let mut changes = client.watch(of("turnkeep.v1.SessionService")).await.unwrap().into_inner();
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let ((), change) = futures::join!(service.stop(), changes.message());
    assert_eq!(change.unwrap().unwrap().status(), ServingStatus::NotServing);
}

async fn a_stop_does_not_wait_for_those_who_watch_its_health(backend: Backend) {
    let grace = Duration::from_hours(1);
    let service = Service::start_with(&backend, |settings| {
        settings.server.drain_grace_seconds = grace.as_secs();
    })
    .await;
    let mut watchers = Vec::new();
    for name in ["", "turnkeep.v1.SessionService", "turnkeep.v1.TranscriptService"] {
        let request = HealthCheckRequest { service: name.to_owned() };
        let mut client = HealthClient::new(service.channel().await);
        eventually("it is there to be watched", async || client.clone().check(request.clone()).await.is_ok())
            .await;
        watchers.push(client.watch(request).await.unwrap().into_inner());
    }
    let told = futures::future::join_all(watchers.iter_mut().map(async |changes| {
        let mut told = Vec::new();
        while let Some(change) = changes.message().await.unwrap() {
            told.push(change.status());
        }
        told
    }));
    let stopped =
        turnkeep::clock::deadline(Duration::from_mins(1), async { futures::join!(service.stop(), told) });
    let ((), told) = stopped.await.unwrap();
    assert_eq!(told, vec![vec![ServingStatus::Serving, ServingStatus::NotServing]; 3]);
}

async fn reflection_describes_both_services_in_both_versions(backend: Backend) {
    let service = Service::start(&backend).await;
    let expected = [
        "grpc.health.v1.Health",
        "turnkeep.v1.ModelService",
        "turnkeep.v1.SessionService",
        "turnkeep.v1.ToolOutputService",
        "turnkeep.v1.TranscriptService",
    ];
    macro_rules! check {
        ($version:ident) => {
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
            let mut client = ServerReflectionClient::new(service.channel().await);
            let mut ask = async |question| {
                let request = tonic_reflection::pb::$version::ServerReflectionRequest {
                    host: String::new(),
                    message_request: Some(question),
                };
                let answers = client.server_reflection_info(futures::stream::iter([request])).await.unwrap();
                answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap()
            };
            let MessageResponse::ListServicesResponse(list) =
                ask(MessageRequest::ListServices(String::new())).await
            else {
                panic!("no list of services")
            };
            let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
            assert!(expected.iter().all(|name| names.iter().any(|listed| listed == name)), "{names:?}");
            let symbol = MessageRequest::FileContainingSymbol("turnkeep.v1.TranscriptService".to_owned());
            let MessageResponse::FileDescriptorResponse(files) = ask(symbol).await else {
                panic!("no description of the service")
            };
            let file = &files.file_descriptor_proto[0];
            let holds = |text: &[u8]| file.windows(text.len()).any(|window| window == text);
            assert!(holds(b"PersistTranscript") && holds(b"RestoreTranscript"));
        };
    }
    {
        check!(v1);
    }
    {
        check!(v1alpha);
    }
}

async fn reflection_can_be_turned_off(backend: Backend) {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    let service = Service::start_with(&backend, |settings| settings.server.reflection = false).await;
    let mut client = ServerReflectionClient::new(service.channel().await);
    let status = client.server_reflection_info(futures::stream::iter([])).await.unwrap_err();
    assert_eq!(service::Refusal::from(status).kind(), (Code::Unimplemented, "UNKNOWN_METHOD"));
}

/// The status line and the body of an answer over HTTP.
async fn http_get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: turnkeep\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

async fn probes_answer_over_http(backend: Backend) {
    let service = Service::start(&backend).await;
    let ok = || ("HTTP/1.1 200 OK".to_owned(), "ok\n".to_owned());
    assert_eq!(http_get(service.http(), "/livez").await, ok());
    assert_eq!(http_get(service.http(), "/readyz").await, ok());
    assert_eq!(http_get(service.http(), "/nothing").await.0, "HTTP/1.1 404 Not Found");
    service.engine().drain().await;
    assert_eq!(http_get(service.http(), "/livez").await, ok());
    let (status, body) = http_get(service.http(), "/readyz").await;
    assert_eq!((&status[..], &body[..]), ("HTTP/1.1 503 Service Unavailable", "DRAINING\n"));
}

async fn a_service_that_drains_takes_no_turns(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    service.append(SESSION, &["{}"]).await;
    service.engine().drain().await;
    let refusals = [
        service.persist(append(SESSION, "r", &["{}"])).await.unwrap_err(),
        service.try_create("t", of_format(OpenaiChat)).await.unwrap_err(),
        service.delete(SESSION, false).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.kind(), (Code::Unavailable, "DRAINING"));
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
    }
    assert_eq!(service.read(SESSION).await.payloads(), ["{}"], "reads go on");
}

async fn a_persist_keeps_its_room_until_its_commit_even_if_its_caller_is_gone(backend: Backend) {
    let (service, faulty) = Service::start_faulty(&backend, |settings| {
        settings.server.persist_bytes_in_flight = 32 << 20;
        settings.server.persist_wait_seconds = 0;
    })
    .await;
    for id in ["s", "t"] {
        service.create(id, of_format(OpenaiChat)).await;
    }
    // Such as no compression makes small enough for the journal.
    let entropy = Entropy::from_os();
    let text = |bytes: usize| (0..bytes / 2048).map(|_| entropy.hex::<1024>()).collect::<String>();
    let large = format!(r#"{{"text":"{}"}}"#, text(20 << 20));
    let small = format!(r#"{{"text":"{}"}}"#, text(1 << 20));
    faulty.set(Fault::Slow(Duration::from_secs(1)));
    let puts = faulty.puts();
    let mut client = service.client.transcripts.clone();
    let turn = append(SESSION, "r", std::slice::from_ref(&large));
    let call = tokio::spawn(async move { client.persist_transcript(turn).await });
    eventually("the turn is on its way", async || faulty.puts() > puts).await;
    call.abort();
    let other = append("sessions/t", "r", &[&large]);
    let refusal = service.persist(other.clone()).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::Unavailable, "OVERLOADED"));
    assert!(refusal.retry_after.is_some());
    assert_eq!(refusal.metadata("limit_bytes"), (32 << 20).to_string());
    assert_eq!(service.append("sessions/t", &[small]).await.version, 1);
    eventually("the turn is committed", async || service.get(SESSION).await.version == 1).await;
    faulty.set(Fault::None);
    eventually("there is room", async || service.persist(other.clone()).await.is_ok()).await;
}

async fn a_data_directory_has_one_service(backend: Backend) {
    let service = Service::start(&backend).await;
    let second = turnkeep::server::start(&backend.settings(), None).await;
    let error = format!("{:#}", second.unwrap_err());
    assert!(
        error.contains("another process uses") && error.contains(backend.data_dir().to_str().unwrap()),
        "{error}"
    );
    service.stop().await;
    turnkeep::server::start(&backend.settings(), None).await.unwrap().stop().await;
}

async fn a_service_that_starts_while_the_object_store_is_down_takes_turns(backend: Backend) {
    /// What trying a store leaves in it.
    const TRIED: &str = "probe/create-only";
    let (service, faults) = Service::start_faulty(&backend, |_| ()).await;
    faults.set(Fault::Down);
    let service = service.restart().await;
    service.create("s", of_format(OpenaiChat)).await;
    for text in ["one", "two"] {
        let message = serde_json::json!({"role": "user", "content": text}).to_string();
        service.append(SESSION, &[message]).await;
    }
    assert_eq!(service.window(SESSION).await.payloads().len(), 2);
    // It is tried before anything is written to it.
    let blobs = backend.stores().await.blobs;
    blobs.delete(TRIED).await.unwrap();
    faults.set(Fault::None);
    assert_eq!(service.seal().await, 1);
    assert!(blobs.size(TRIED).await.unwrap().is_some());
}
