//! Tool outputs beside the log.

use super::{MatchPlace, Role, Search, of, oldest_first, search};
use crate::backends::{Backend, on_all_backends};
use crate::calls::{offload, read, stored};
use crate::messages::{STRUCTURED, call, result};
use crate::service::{SESSION, Service, fresh_id, of_format};
use pb::WireFormat::AnthropicMessages;
use pb::read_tool_output_request::{LineRange, Part as Wanted};
use turnkeep::rpc::pb;

on_all_backends!(
    tool_outputs_are_searched_if_asked,
    outputs_of_turns_are_searched_by_their_tools,
    a_log_has_the_outputs_that_its_entries_show,
);

/// Lines of which every thousandth is found, never in the preview.
fn content(word: &str) -> String {
    let line = |i: usize| match i {
        _ if i % 1_000 == 500 && (8_000..12_000).contains(&i) => format!("{i}: é \"{word}\" here {word}\n"),
        _ => format!("{i}: nothing to see in this line\n"),
    };
    (1..=20_000).map(line).collect()
}

async fn keep(service: &Service, session: &str, word: &str) -> pb::offload_tool_output_response::Stored {
    let kept = stored(offload(service, session, content(word).as_bytes()).await.unwrap());
    assert!(!kept.preview.contains(word));
    kept
}

async fn tool_outputs_are_searched_if_asked(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(AnthropicMessages)).await;
    let mut refs = Vec::new();
    for i in 1..=2 {
        let kept = keep(&service, SESSION, "needle").await;
        let id = format!("call_{i}");
        let turn = [call(AnthropicMessages, &id, "grep"), result(AnthropicMessages, &id, "", &kept.preview)];
        service.append(SESSION, &turn).await;
        refs.insert(0, kept.output.unwrap().r#ref);
    }
    service.append(SESSION, &[crate::messages::user(AnthropicMessages, "a needle?")]).await;
    assert_eq!(search(&service, of("needle")).await.seqs(), [5]);
    let with_outputs = Search { include_tool_outputs: true, context_characters: Some(3), ..of("needle") };
    let found = search(&service, with_outputs.clone()).await;
    assert_eq!(found.matches[0].seq, 5);
    let told: Vec<_> = found.matches[1..].iter().map(|found| (found.r#ref.as_str(), found.line)).collect();
    let lines = [8_500, 9_500, 10_500, 11_500];
    let expected: Vec<_> = refs.iter().flat_map(|output| lines.map(|line| (output.as_str(), line))).collect();
    assert_eq!(told, expected, "the newest output first");
    for (i, found) in found.matches[1..].iter().enumerate() {
        let version = u64::from(i < 4);
        let first_byte = content("needle").find(&format!("\n{}: é", found.line)).unwrap() as u64;
        let first_byte = first_byte + 1 + format!("{}: é \"", found.line).len() as u64;
        let expected = pb::TranscriptMatch {
            seq: 0,
            version,
            role: Role::Tool.into(),
            place: MatchPlace::ToolOutput.into(),
            tool_name: "grep".to_owned(),
            tool_call_id: "call_1".to_owned(),
            r#ref: found.r#ref.clone(),
            line: found.line,
            excerpt: "é \"needle\" h".to_owned(),
            excerpt_first_byte: first_byte - 4,
            first_byte,
            bytes: 6,
            text_bytes: content("needle").len() as u64,
        };
        assert_eq!(*found, expected);
    }
    // The place is one to read on at.
    let part = Wanted::Lines(LineRange { start: 8_500, count: Some(1) });
    let name = found.matches[1].r#ref.clone();
    let request = pb::ReadToolOutputRequest { name, part: Some(part), ..Default::default() };
    let read = read(&service, request).await.unwrap();
    assert_eq!(read.bytes, "8500: é \"needle\" here needle\n".as_bytes());

    for matches_max in [1, 2, 5] {
        for oldest_first in [false, true] {
            let (mut pages, mut page_token) = (Vec::new(), String::new());
            loop {
                let request = Search { page_token, matches_max, oldest_first, ..with_outputs.clone() };
                let page = search(&service, request).await;
                pages.extend(page.matches);
                page_token = page.next_page_token;
                if page_token.is_empty() {
                    break;
                }
            }
            assert_eq!(pages, found.matches);
        }
    }
    let roles = |role: Role| Search { roles: vec![role.into()], ..with_outputs.clone() };
    assert_eq!(search(&service, roles(Role::User)).await.seqs(), [5]);
    assert_eq!(search(&service, roles(Role::Tool)).await.matches, found.matches[1..]);
    let tools = |tool: &str| Search { tool_names: vec![tool.to_owned()], ..with_outputs.clone() };
    assert_eq!(search(&service, tools("make")).await.matches, []);
    assert_eq!(search(&service, tools("grep")).await.matches, found.matches[1..]);
}

async fn outputs_of_turns_are_searched_by_their_tools(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in STRUCTURED {
        let id = format!("s{}", i32::from(format));
        let name = service.create(&id, of_format(format)).await.name;
        service.append(&name, &[call(format, "c1", "grep")]).await;
        let turn = [result(format, "c1", "grep", &content("needle").repeat(3))];
        assert_eq!(service.append(&name, &turn).await.offloaded_results.len(), 1);
        let of_tool = |tool: &str| Search {
            session: name.clone(),
            tool_names: vec![tool.to_owned()],
            include_tool_outputs: true,
            ..of("needle")
        };
        let found = search(&service, of_tool("grep")).await.matches;
        assert_eq!(found.iter().filter(|found| found.tool_name == "grep").count(), 12, "{format:?}");
        assert_eq!(search(&service, of_tool("make")).await.matches, []);
    }
}

async fn a_log_has_the_outputs_that_its_entries_show(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(AnthropicMessages)).await;
    let shown = async |word: &str| {
        let kept = keep(&service, SESSION, word).await;
        service.append(SESSION, &[result(AnthropicMessages, "c", "", &kept.preview)]).await;
    };
    shown("alpha").await;
    shown("beta").await;
    // A result that comes with a persist and is too long.
    let turn = [result(AnthropicMessages, "c", "", &content("gamma").repeat(3))];
    assert_eq!(service.append(SESSION, &turn).await.offloaded_results.len(), 1);
    service.rewind_to(SESSION, 2).await;
    shown("delta").await;
    keep(&service, SESSION, "omega").await;
    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        version: Some(2),
        session_id: "fork".to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
    let words = ["alpha", "beta", "gamma", "delta", "omega"];
    let found = async |session: &str, at_version, first_version| {
        let mut found = Vec::new();
        for word in words {
            let request = Search {
                session: session.to_owned(),
                at_version,
                first_version,
                include_tool_outputs: true,
                matches_max: 1,
                ..oldest_first(word)
            };
            let first = search(&service, request).await.matches.pop();
            assert!(first.as_ref().is_none_or(|found| found.r#ref.contains(session)), "{first:?}");
            found.extend(first.map(|_| word));
        }
        found
    };
    for _ in 0..2 {
        assert_eq!(found(SESSION, None, 0).await, ["alpha", "beta", "delta", "omega"]);
        assert_eq!(found(SESSION, Some(0), 0).await, [""; 0]);
        assert_eq!(found(SESSION, Some(1), 0).await, ["alpha"]);
        assert_eq!(found(SESSION, Some(2), 0).await, ["alpha", "beta"]);
        assert_eq!(found(SESSION, Some(3), 0).await, ["alpha", "beta", "gamma"]);
        assert_eq!(found(SESSION, Some(3), 3).await, ["gamma"]);
        assert_eq!(found(SESSION, Some(4), 0).await, ["alpha", "beta"]);
        assert_eq!(found(SESSION, Some(5), 2).await, ["beta", "delta", "omega"]);
        assert_eq!(found("sessions/fork", None, 0).await, ["alpha", "beta"]);
        service.seal().await;
    }
}
