//! Windows of turns that the metadata lost.

use crate::backends::{Backend, on_all_backends, on_shared_backend};
use crate::messages::user;
use crate::service::{Restored, SESSION, Service, of_format};
use pb::FullReason;
use pb::WireFormat::OpenaiChat;
use turnkeep::rpc::pb;

on_all_backends!(a_window_of_turns_that_the_metadata_lost_is_not_built_upon);
on_shared_backend!(a_replica_forgets_turns_that_the_metadata_lost);

async fn a_window_of_turns_that_the_metadata_lost_is_not_built_upon(backend: Backend) {
    let mut service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let log = ["one", "two", "other", "next"].map(|text| user(OpenaiChat, text));
    for payload in &log[..2] {
        service.append(SESSION, &[payload]).await;
    }
    let kept = service.window(SESSION).await;
    service.append(SESSION, &[user(OpenaiChat, "lost")]).await;
    let held = service.window(SESSION).await;
    backend.take_back(2).await;
    for length in 2..=log.len() {
        if length > 2 {
            service.append(SESSION, &[&log[length - 1]]).await;
        }
        told_of_loss(&service, &held, &kept, &log[..length]).await;
        service = service.restart().await;
        told_of_loss(&service, &held, &kept, &log[..length]).await;
    }
}

/// A worker that holds a turn that was lost gets the whole log, and one that
/// does not hold it what it lacks.
async fn told_of_loss(service: &Service, held: &Restored, kept: &Restored, log: &[String]) {
    let told = service.restore_from(SESSION, &held.header.window_id).await;
    assert_eq!(told.full_reason(), Some(FullReason::UnknownWindow), "{}", log.len());
    assert_eq!(told.payloads(), log);
    let told = service.restore_from(SESSION, &kept.header.window_id).await;
    assert_eq!((told.full_reason(), &told.payloads()[..]), (None, &log[2..]));
}

async fn a_replica_forgets_turns_that_the_metadata_lost(backend: Backend) {
    let one = Service::start(&backend).await;
    let other = Service::start(&backend).await;
    one.create("s", of_format(OpenaiChat)).await;
    let log = ["one", "two", "other", "next"].map(|text| user(OpenaiChat, text));
    one.append(SESSION, &log[..1]).await;
    one.append(SESSION, &log[1..2]).await;
    let kept = other.window(SESSION).await;
    one.append(SESSION, &[user(OpenaiChat, "lost")]).await;
    let held = one.window(SESSION).await;
    backend.take_back(2).await;
    other.append(SESSION, &log[2..3]).await;
    for service in [&one, &other] {
        told_of_loss(service, &held, &kept, &log[..3]).await;
    }
    // It has the lost turn in mind as the newest, which has the same version.
    one.append(SESSION, &log[3..]).await;
    for service in [&one, &other] {
        told_of_loss(service, &held, &kept, &log).await;
    }
}
