//! Episodes.

use super::{CONTEXT, SESSION, Service, answer, session, step};
use crate::backends::Backend;
use crate::messages::user;
use crate::service::Refusal;
use tonic::Code;
use turnkeep::rpc::pb;
use turnkeep::rpc::pb::WireFormat::OpenaiChat;

/// Has a summary of the worker's own take the place of all but the newest steps.
async fn summarize(service: &Service, numbers: std::ops::Range<usize>, summary: &str) -> pb::Compaction {
    for number in numbers {
        service.append(SESSION, &step(OpenaiChat, number)).await;
    }
    let plan = pb::PlanCompactionRequest { session: SESSION.to_owned(), ..Default::default() };
    let planned = answer(service.client.transcripts.clone().plan_compaction(plan).await).unwrap().plan;
    let commit = pb::CommitCompactionRequest {
        session: SESSION.to_owned(),
        plan: planned,
        summary: summary.to_owned(),
        usage: Some(pb::Usage { model: "gpt-4o".to_owned(), ..Default::default() }),
    };
    answer(service.client.transcripts.clone().commit_compaction(commit).await).unwrap()
}

async fn page(service: &Service, size: i32, token: &str) -> Result<pb::ListEpisodesResponse, Refusal> {
    let request =
        pb::ListEpisodesRequest { parent: SESSION.to_owned(), page_size: size, page_token: token.to_owned() };
    answer(service.client.memory.clone().list_episodes(request).await)
}

async fn get(service: &Service, name: String) -> Result<pb::Episode, Refusal> {
    answer(service.client.memory.clone().get_episode(pb::GetEpisodeRequest { name }).await)
}

async fn start(backend: &Backend) -> Service {
    let service = Service::start(backend).await;
    let session =
        pb::Session { path: pb::CompressionPath::Interactive.into(), ..session(OpenaiChat, CONTEXT) };
    service.create("s", session).await;
    service.append(SESSION, &[user(OpenaiChat, "count")]).await;
    service
}

/// Number and text of the episodes.
async fn texts(service: &Service) -> Vec<(String, String)> {
    let episodes = page(service, 0, "").await.unwrap().episodes;
    let number = |episode: &pb::Episode| episode.name.rsplit('/').next().unwrap().to_owned();
    episodes.iter().map(|episode| (number(episode), episode.text.clone())).collect()
}

pub(super) async fn episodes_are_the_chain_of_summaries(backend: Backend) {
    let service = start(&backend).await;
    assert_eq!(page(&service, 0, "").await.unwrap(), pb::ListEpisodesResponse::default());
    let first = summarize(&service, 0..10, "Counted a little.").await;
    // What is recorded between them is none.
    let pin = pb::Pin { name: "rule".to_owned(), text: "none".to_owned(), seq: 0 };
    let request = pb::PutPinRequest { parent: SESSION.to_owned(), pin: Some(pin) };
    answer(service.client.memory.clone().put_pin(request).await).unwrap();
    let second = summarize(&service, 10..20, "Counted some more.").await;
    let service = service.restart().await;
    let episodes = page(&service, 0, "").await.unwrap().episodes;
    let expected = |compaction: &pb::Compaction, first_seq, text: &str| pb::Episode {
        name: compaction.name.replace("compactions", "episodes"),
        compaction: compaction.name.clone(),
        version: compaction.version,
        create_time: compaction.create_time,
        first_seq,
        last_seq: compaction.first_kept_seq - 1,
        text: text.to_owned(),
        ledger: compaction.ledger.clone(),
        model: "gpt-4o".to_owned(),
        cause: compaction.cause.clone(),
    };
    let newest = expected(&second, first.first_kept_seq, "Counted some more.");
    let oldest = expected(&first, 1, "Counted a little.");
    assert_eq!(episodes, [newest.clone(), oldest.clone()]);
    for episode in [&newest, &oldest] {
        assert_eq!(get(&service, episode.name.clone()).await.unwrap(), *episode);
    }
    let one = page(&service, 1, "").await.unwrap();
    assert_eq!(one.episodes, [newest]);
    let last = page(&service, 1, &one.next_page_token).await.unwrap();
    assert_eq!((last.episodes, last.next_page_token), (vec![oldest], String::new()));
}

pub(super) async fn what_was_undone_or_rewound_is_no_episode(backend: Backend) {
    let service = start(&backend).await;
    let first = summarize(&service, 0..10, "Counted a little.").await;
    let version = service.get(SESSION).await.version;
    let second = summarize(&service, 10..20, "Counted some more.").await;
    let undo = pb::UndoCompactionRequest { name: second.name.clone() };
    answer(service.client.transcripts.clone().undo_compaction(undo).await).unwrap();
    let undone = texts(&service).await;
    assert_eq!(undone.iter().map(|(_, text)| &text[..]).collect::<Vec<_>>(), ["Counted a little."]);
    let none = get(&service, second.name.replace("compactions", "episodes")).await.unwrap_err();
    assert_eq!(none.kind(), (Code::NotFound, "COMPACTION_NOT_FOUND"));
    // An undo can be undone, and undone again.
    for expected in [&["Counted some more.", "Counted a little."][..], &["Counted a little."]] {
        let list = pb::ListCompactionsRequest { parent: SESSION.to_owned(), ..Default::default() };
        let listed = answer(service.client.transcripts.clone().list_compactions(list).await).unwrap();
        let undo = pb::UndoCompactionRequest { name: listed.compactions[0].name.clone() };
        answer(service.client.transcripts.clone().undo_compaction(undo).await).unwrap();
        let known = texts(&service).await;
        assert_eq!(known.iter().map(|(_, text)| &text[..]).collect::<Vec<_>>(), expected);
        let episode = get(&service, second.name.replace("compactions", "episodes")).await;
        assert_eq!(episode.is_ok(), expected.len() == 2);
    }
    let undone = texts(&service).await;
    // The next one goes on from where the window begins again.
    let third = summarize(&service, 20..22, "Counted on.").await;
    let episodes = page(&service, 0, "").await.unwrap().episodes;
    assert_eq!((episodes.len(), episodes[0].first_seq), (2, first.first_kept_seq));
    assert_eq!(episodes[0].compaction, third.name);
    service.rewind_to(SESSION, version).await;
    assert_eq!(texts(&service).await, undone);
    service.rewind_to(SESSION, 1).await;
    assert_eq!(texts(&service).await, []);
    for (name, kind) in [
        ("sessions/s/episodes/x", (Code::InvalidArgument, "INVALID_FIELD")),
        ("sessions/s/compactions/1", (Code::InvalidArgument, "INVALID_FIELD")),
        ("sessions/other/episodes/1", (Code::NotFound, "SESSION_NOT_FOUND")),
    ] {
        assert_eq!(get(&service, name.to_owned()).await.unwrap_err().kind(), kind, "{name}");
    }
}
