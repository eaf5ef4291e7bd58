//! Tool outputs: kept whole behind a preview, and read back in any part.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

#[path = "service_outputs/calls.rs"]
mod calls;
#[path = "service_outputs/media.rs"]
mod media;
#[path = "service_outputs/persisted.rs"]
mod persisted;
#[path = "service_outputs/reads.rs"]
mod reads;
#[path = "service_outputs/searches.rs"]
mod searches;

use backends::{Backend, on_all_backends};
use calls::{commit, data, offload, offload_frames, start, stored};
use pb::WireFormat::{self, AnthropicMessages, BedrockConverse, GeminiContents, OpenaiChat, OpenaiResponses};
use pb::offload_tool_output_response::{Inline, Outcome};
use service::{SESSION, Service, fresh_id, of_format, polled};
use tonic::Code;
use turnkeep::codec::digest;
use turnkeep::rpc::pb;

on_all_backends!(
    what_is_short_is_inline_and_nothing_is_stored,
    what_is_long_is_kept_whole_behind_its_preview,
    a_stream_that_ends_at_any_frame_leaves_nothing,
    a_stream_that_is_not_what_it_says_is_refused,
    outputs_are_listed_in_pages_the_newest_first,
    absent_and_foreign_outputs_look_the_same,
    a_fork_has_its_outputs_for_as_long_as_it_lives,
);

fn numbered_lines(lines: usize) -> Vec<u8> {
    (1..=lines).flat_map(|i| format!("line {i} of {lines}: \"quoted\"\r\n").into_bytes()).collect()
}

async fn what_is_short_is_inline_and_nothing_is_stored(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    for content in [&b""[..], b"ok", &vec![b'x'; 79_000], &vec![0xff; 13_000]] {
        let outcome = offload(&service, SESSION, content).await.unwrap();
        let Outcome::Inline(Inline { length, length_max }) = outcome else { panic!("{outcome:?}") };
        assert_eq!(length_max, 79_488);
        assert!((content.len() as u64..=length_max).contains(&length), "{length}");
    }
    // As many bytes, but each is two characters in the message.
    let quotes = vec![b'"'; 79_000];
    stored(offload(&service, SESSION, &quotes).await.unwrap());
    assert_eq!(calls::list(&service, SESSION).await.len(), 1);
    assert_eq!(backend.blob_keys().await.len(), 1);
    // A session's own limit.
    let limit = pb::ToolResultLimit {
        length: 1_500,
        reserve: Some(500),
        unit: pb::LengthUnit::Bytes.into(),
        ..Default::default()
    };
    let profile = pb::ModelProfile { tool_result_limit: Some(limit), ..Default::default() };
    service.create("t", pb::Session { profile: Some(profile), ..of_format(AnthropicMessages) }).await;
    let outcome = offload(&service, "sessions/t", &[b'x'; 600]).await.unwrap();
    assert!(matches!(outcome, Outcome::Inline(Inline { length_max: 875, .. })), "{outcome:?}");
    let kept = stored(offload(&service, "sessions/t", &[b'x'; 1_200]).await.unwrap());
    assert!(kept.preview.len() < 1_000, "{}", kept.preview);
}

async fn what_is_long_is_kept_whole_behind_its_preview(backend: Backend) {
    let mut service = Service::start(&backend).await;
    let content = numbered_lines(20_000);
    let formats = [OpenaiChat, OpenaiResponses, AnthropicMessages, GeminiContents, BedrockConverse];
    for (i, format) in formats.into_iter().enumerate() {
        let name = service.create(&format!("s{i}"), of_format(format)).await.name;
        let pb::offload_tool_output_response::Stored { output, preview, omitted_bytes, omitted_lines } =
            stored(offload(&service, &name, &content).await.unwrap());
        let output = output.unwrap();
        let expected = pb::ToolOutput {
            name: output.name.clone(),
            r#ref: format!("turnkeep://{}", output.name),
            tool_call_id: "call_1".to_owned(),
            tool_name: "grep".to_owned(),
            content_type: "text/plain".to_owned(),
            bytes: content.len() as u64,
            characters: content.len() as u64,
            lines: 20_000,
            sha256: digest::sha256(&content).0.to_vec().into(),
            stored_bytes: output.stored_bytes,
            create_time: output.create_time,
        };
        assert_eq!(output, expected);
        assert!(output.name.starts_with(&format!("{name}/outputs/")), "{}", output.name);
        assert!((1_000..content.len() as u64 / 4).contains(&output.stored_bytes));
        assert!(preview.starts_with("line 1 of 20000"), "{preview}");
        assert!(preview.ends_with("line 20000 of 20000: \"quoted\"\r\n"), "{preview}");
        assert!(preview.contains(&output.r#ref), "{preview}");
        assert!(preview.len() as u64 + omitted_bytes > content.len() as u64);
        assert!((15_000..20_000).contains(&omitted_lines));
        let message = serde_json::json!({"role": "tool", "content": preview}).to_string();
        assert!((70_000..80_000).contains(&message.len()), "{}", message.len());
        for asked in [&output.name, &output.r#ref] {
            assert_eq!(calls::get(&service, asked).await.unwrap(), output);
        }
        assert_eq!(calls::list(&service, &name).await, std::slice::from_ref(&output));
        service = service.restart().await;
        assert!(calls::whole(&service, &output.r#ref).await == content);
        assert_eq!(calls::get(&service, &output.name).await.unwrap(), output);
    }
    service.stop().await;
    let report = backend.fsck().await;
    assert_eq!((report.outputs, report.findings), (5, vec![]));
}

async fn a_stream_that_ends_at_any_frame_leaves_nothing(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let content = numbered_lines(40_000);
    let parts: Vec<_> = content.chunks(200_000).collect();
    let mut frames = vec![start(SESSION)];
    frames.extend(parts.iter().map(|part| data(part)));
    for cut in 0..=frames.len() {
        let refusal = offload_frames(&service, frames[..cut].to_vec()).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"), "after {cut} frames");
        assert_eq!(refusal.metadata("field"), "commit");
    }
    // A client that goes away: the commit never comes, or the answer is not heard.
    frames.push(commit(&content));
    for times in 0..6 {
        for cut in 0..frames.len() {
            polled(times, offload_frames(&service, frames[..cut].to_vec())).await;
        }
    }
    assert_eq!(calls::list(&service, SESSION).await, []);
    assert_eq!(backend.blob_keys().await.len(), 0);
    stored(offload_frames(&service, frames).await.unwrap());
    assert_eq!(calls::list(&service, SESSION).await.len(), 1);
}

async fn a_stream_that_is_not_what_it_says_is_refused(backend: Backend) {
    use pb::offload_tool_output_request::{Commit, Frame, Start};
    let service = Service::start_with(&backend, |settings| settings.outputs.bytes_max = 300_000).await;
    service.create("s", of_format(OpenaiChat)).await;
    let content = numbered_lines(5_000);
    let frame = |frame| pb::OffloadToolOutputRequest { frame: Some(frame) };
    let start_with = |adjust: &dyn Fn(&mut Start)| {
        let mut start = Start { session: SESSION.to_owned(), ..Default::default() };
        adjust(&mut start);
        vec![frame(Frame::Start(start))]
    };
    let commit_of = |bytes: usize, sha256: &[u8]| {
        frame(Frame::Commit(Commit { bytes: bytes as u64, sha256: sha256.to_vec().into() }))
    };
    let sha256 = digest::sha256(&content).0;
    let whole = |last| vec![start(SESSION), data(&content), last];
    let table = [
        (vec![data(b"x")], "start"),
        (vec![start(SESSION), start(SESSION)], "start"),
        (vec![pb::OffloadToolOutputRequest { frame: None }], "frame"),
        (start_with(&|start| start.session = "s".to_owned()), "start.session"),
        (start_with(&|start| start.tool_call_id = "x".repeat(257)), "start.tool_call_id"),
        (start_with(&|start| start.tool_name = "a\nb".to_owned()), "start.tool_name"),
        (start_with(&|start| start.content_type = "\0".to_owned()), "start.content_type"),
        (start_with(&|start| start.head_percent = Some(101)), "start.head_percent"),
        (whole(commit_of(content.len() - 1, &sha256)), "commit.bytes"),
        (whole(commit_of(content.len(), &sha256[..31])), "commit.sha256"),
        (whole(commit_of(content.len(), &digest::sha256(b"other").0)), "commit.sha256"),
        (vec![start(SESSION), data(b"x"), commit_of(1, &sha256)], "commit.sha256"),
        (
            [start_with(&|start| start.preview_length_max = Some(9)), vec![data(&content), commit(&content)]]
                .concat(),
            "preview_length_max",
        ),
    ];
    for (frames, field) in table {
        let refusal = offload_frames(&service, frames).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"), "{field}");
        assert_eq!(refusal.metadata("field"), field);
    }
    // A session's own limit may be the one that leaves no room.
    let limit = pb::ToolResultLimit { length: 300, reserve: Some(0), ..Default::default() };
    let profile = pb::ModelProfile { tool_result_limit: Some(limit), ..Default::default() };
    service.create("tiny", pb::Session { profile: Some(profile), ..of_format(OpenaiChat) }).await;
    let refusal = offload(&service, "sessions/tiny", &content).await.unwrap_err();
    assert_eq!(refusal.metadata("field"), "profile.tool_result_limit");
    let nobody = offload(&service, "sessions/nobody", b"x").await.unwrap_err();
    assert_eq!(nobody.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
    let large = offload(&service, SESSION, &vec![b'x'; 300_001]).await.unwrap_err();
    assert_eq!(large.kind(), (Code::OutOfRange, "OUTPUT_TOO_LARGE"));
    assert_eq!(large.metadata("limit_bytes"), "300000");
    assert_eq!(calls::list(&service, SESSION).await, []);
    assert_eq!(backend.blob_keys().await.len(), 0);
    let most = offload(&service, SESSION, &vec![b'x'; 300_000]).await.unwrap();
    stored(most);
}

async fn outputs_are_listed_in_pages_the_newest_first(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let mut expected = Vec::new();
    for i in 0..5 {
        let content = numbered_lines(5_000 + i);
        expected.push(stored(offload(&service, SESSION, &content).await.unwrap()).output.unwrap());
    }
    expected.sort_by(|a, b| b.name.cmp(&a.name));
    for page_size in [1, 2, 5, 9] {
        let mut listed = Vec::new();
        let mut page_token = String::new();
        loop {
            let page = calls::list_page(&service, SESSION, page_size, &page_token).await.unwrap();
            assert!(page.outputs.len() <= usize::try_from(page_size).unwrap());
            listed.extend(page.outputs);
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(listed, expected, "in pages of {page_size}");
    }
    let refusal = calls::list_page(&service, SESSION, 1, "!").await.unwrap_err();
    assert_eq!(refusal.metadata("field"), "page_token");
    let refusal = calls::list_page(&service, "sessions/nobody", 1, "").await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
}

async fn absent_and_foreign_outputs_look_the_same(backend: Backend) {
    use turnkeep::model::{OutputName, TenantId};
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    service.create("t", of_format(OpenaiChat)).await;
    let name = stored(offload(&service, SESSION, &numbered_lines(5_000)).await.unwrap()).output.unwrap().name;
    let id = name.rsplit('/').next().unwrap().to_owned();
    let absent = [
        "sessions/s/outputs/0".to_owned(),
        format!("sessions/t/outputs/{id}"),
        format!("sessions/nobody/outputs/{id}"),
    ];
    for absent in absent {
        let refusal = calls::get(&service, &absent).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::NotFound, "OUTPUT_NOT_FOUND"));
        assert_eq!(refusal.message, format!("{absent} not found"));
        let read = pb::ReadToolOutputRequest { name: absent.clone(), ..Default::default() };
        assert_eq!(calls::read(&service, read).await.unwrap_err().message, refusal.message);
    }
    let foreign = TenantId::parse("foreign").unwrap();
    let parsed = OutputName::parse(&name).unwrap();
    let error = service.engine().get_output(&foreign, &parsed).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{name} not found"));
    for wrong in ["", "x", SESSION, "turnkeep://sessions/s", "sessions/s/outputs/a b"] {
        let refusal = calls::get(&service, wrong).await.unwrap_err();
        assert_eq!(refusal.metadata("field"), "name", "{wrong}");
    }
}

async fn a_fork_has_its_outputs_for_as_long_as_it_lives(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(WireFormat::Opaque)).await;
    let content = numbered_lines(5_000);
    let kept = stored(offload(&service, SESSION, &content).await.unwrap());
    service.append(SESSION, &[serde_json::json!({"result": kept.preview}).to_string()]).await;
    let output = kept.output.unwrap();
    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        session_id: "fork".to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
    service.delete(SESSION, false).await.unwrap();
    // The preview in the fork's log still says the name of its first session.
    let renamed = output.name.replace("sessions/s/", "sessions/fork/");
    for name in [&output.r#ref, &renamed] {
        assert!(calls::whole(&service, name).await == content);
    }
    assert_eq!(calls::list(&service, "sessions/fork").await[0].name, renamed);
    let page = pb::ReadToolOutputRequest { name: output.r#ref.clone(), ..Default::default() };
    assert!(!calls::read(&service, page).await.unwrap().bytes.is_empty());
    service.delete("sessions/fork", false).await.unwrap();
    for name in [&output.r#ref, &renamed] {
        assert_eq!(calls::get(&service, name).await.unwrap_err().kind().1, "OUTPUT_NOT_FOUND");
    }
}
