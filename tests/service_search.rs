//! Searching transcripts: whatever was said is found, at any version, wherever it
//! lies.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/service.rs"]
mod service;

#[path = "service_search/bounds.rs"]
mod bounds;
#[path = "service_outputs/calls.rs"]
mod calls;
#[path = "service_search/outputs.rs"]
mod outputs;

use backends::{Backend, on_all_backends};
use messages::{STRUCTURED, call, model, result, user};
use pb::search_transcript_response::Part;
use pb::{MatchPlace, Role, SearchTranscriptRequest as Search, TranscriptMatch};
use serde_json::json;
use service::{Refusal, SESSION, Service, append_entries, entry, fresh_id, of_format};
use turnkeep::rpc::pb;

on_all_backends!(
    what_was_said_is_found_with_its_place_in_every_format,
    payloads_are_searched_as_what_they_say,
    a_pattern_is_a_text_or_a_regular_expression,
    any_version_of_a_log_is_searched,
    the_tool_of_a_result_is_known_wherever_its_call_lies,
    entries_that_are_no_messages_are_searched_if_asked,
);

/// A search that came whole.
#[derive(Clone, Debug, PartialEq)]
struct Searched {
    header: pb::ReadHeader,
    matches: Vec<TranscriptMatch>,
    next_page_token: String,
}

impl Searched {
    fn seqs(&self) -> Vec<u64> {
        self.matches.iter().map(|found| found.seq).collect()
    }

    fn excerpts(&self) -> Vec<&str> {
        self.matches.iter().map(|found| found.excerpt.as_str()).collect()
    }

    /// Seq, role, place, tool and call.
    fn told(&self) -> Vec<(u64, Role, MatchPlace, &str, &str)> {
        fn told(found: &TranscriptMatch) -> (u64, Role, MatchPlace, &str, &str) {
            (found.seq, found.role(), found.place(), &found.tool_name, &found.tool_call_id)
        }
        self.matches.iter().map(told).collect()
    }
}

async fn try_search(service: &Service, request: Search) -> Result<Searched, Refusal> {
    let mut parts = service.client.transcripts.clone().search_transcript(request).await?.into_inner();
    let first = parts.message().await?.and_then(|message| message.part);
    let Some(Part::Header(header)) = first else { panic!("a search begins with {first:?}") };
    let mut matches = Vec::new();
    let mut end = None;
    while let Some(message) = parts.message().await? {
        match message.part {
            Some(Part::Matches(more)) if end.is_none() => matches.extend(more.matches),
            Some(Part::End(last)) if end.is_none() => end = Some(last),
            other => panic!("within a search comes {other:?}"),
        }
    }
    Ok(Searched { header, matches, next_page_token: end.unwrap().next_page_token })
}

async fn search(service: &Service, request: Search) -> Searched {
    try_search(service, request).await.unwrap()
}

fn of(pattern: &str) -> Search {
    Search { session: SESSION.to_owned(), pattern: pattern.to_owned(), ..Default::default() }
}

/// A search for a regular expression, that shows the matches alone.
fn regex(pattern: &str) -> Search {
    Search { is_regex: true, context_characters: Some(0), oldest_first: true, ..of(pattern) }
}

fn oldest_first(pattern: &str) -> Search {
    Search { oldest_first: true, ..of(pattern) }
}

async fn what_was_said_is_found_with_its_place_in_every_format(backend: Backend) {
    let mut service = Service::start(&backend).await;
    for format in STRUCTURED {
        let id = format!("s{}", i32::from(format));
        let name = service.create(&id, of_format(format)).await.name;
        service.append(&name, &[user(format, "find the needle")]).await;
        service.append(&name, &[call(format, "c1", "needle_finder")]).await;
        service.append(&name, &[result(format, "c1", "needle_finder", "1: a needle\n2: hay")]).await;
        service.append(&name, &[model(format, "the NEEDLE is found")]).await;
        let whole = vec![
            (1, Role::User, MatchPlace::Text, "", ""),
            (2, Role::Model, MatchPlace::CallName, "needle_finder", "c1"),
            (3, Role::Tool, MatchPlace::Result, "needle_finder", "c1"),
            (4, Role::Model, MatchPlace::Text, "", ""),
        ];
        let is_of_call = |told: &(u64, Role, MatchPlace, &str, &str)| told.3 == "needle_finder";
        for _ in 0..2 {
            let request = Search { session: name.clone(), ignore_case: true, ..oldest_first("needle") };
            let found = search(&service, request.clone()).await;
            assert_eq!(found.told(), whole, "{format:?}");
            assert_eq!(found.next_page_token, "");
            assert_eq!((found.header.version, found.header.head_seq), (4, 4));
            assert_eq!(found.header, service.read(&name).await.header);
            let versions: Vec<_> = found.matches.iter().map(|found| found.version).collect();
            assert_eq!(versions, [1, 2, 3, 4]);
            let of_result = &found.matches[2];
            let before = of_result.text_bytes - of_result.first_byte;
            assert!(of_result.excerpt.contains("1: a needle\n2: hay"), "{of_result:?}");
            assert!(before > of_result.bytes && of_result.bytes == 6 && of_result.excerpt_first_byte == 0);

            let newest_first = Search { oldest_first: false, ..request.clone() };
            let reversed: Vec<_> = whole.iter().copied().rev().collect();
            assert_eq!(search(&service, newest_first).await.told(), reversed);
            let cased = Search { ignore_case: false, ..request.clone() };
            assert_eq!(search(&service, cased).await.told(), whole[..3]);
            for role in [Role::System, Role::User, Role::Model, Role::Tool, Role::Other] {
                let expected: Vec<_> = whole.iter().copied().filter(|told| told.1 == role).collect();
                let request = Search { roles: vec![role.into()], ..request.clone() };
                assert_eq!(search(&service, request).await.told(), expected);
            }
            let two = Search { roles: vec![Role::User.into(), Role::Tool.into()], ..request.clone() };
            assert_eq!(search(&service, two).await.seqs(), [1, 3]);
            let tools = vec!["other".to_owned(), "needle_finder".to_owned()];
            let of_tool = Search { tool_names: tools, ..request.clone() };
            let expected: Vec<_> = whole.iter().copied().filter(is_of_call).collect();
            assert_eq!(search(&service, of_tool.clone()).await.told(), expected);
            let other = Search { tool_names: vec!["needle".to_owned()], ..of_tool };
            assert_eq!(search(&service, other).await.told(), []);
            let absent = search(&service, Search { pattern: "haystack".to_owned(), ..request }).await;
            assert_eq!((absent.matches, absent.next_page_token), (vec![], String::new()));
            service.seal().await;
            service = service.restart().await;
        }
    }
}

async fn payloads_are_searched_as_what_they_say(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    let arguments = json!({"cmd": "echo \"caf\u{e9}\"\nls C:\\dir"}).to_string().replace('é', r"\u00e9");
    let payloads = [
        r#"{"role":"user","content":"caf\u00e9 one\ntwo \u4e2d\u6587\ud83d\ude00 end"}"#.to_owned(),
        json!({"role": "user", "content": "在日志里搜索这个词"}).to_string(),
        json!({"role": "assistant", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "sh", "arguments": arguments}}]})
        .to_string(),
    ];
    assert!(payloads[2].contains(r"\\u00e9") && payloads[2].contains(r"\\\\dir"));
    service.append(SESSION, &payloads).await;
    for sealed in [false, true] {
        assert_eq!(search(&service, oldest_first("café")).await.seqs(), [1, 3], "sealed: {sealed}");
        assert_eq!(search(&service, oldest_first("one\ntwo 中文😀")).await.seqs(), [1]);
        assert_eq!(search(&service, regex(r"\p{Han}+")).await.excerpts(), ["中文", "在日志里搜索这个词"]);
        let context = Search { context_characters: Some(2), ..of("搜索") };
        let found = search(&service, context).await;
        let expected = TranscriptMatch {
            seq: 2,
            version: 1,
            role: Role::User.into(),
            place: MatchPlace::Text.into(),
            excerpt: "志里搜索这个".to_owned(),
            excerpt_first_byte: 6,
            first_byte: 12,
            bytes: 6,
            text_bytes: 27,
            ..Default::default()
        };
        assert_eq!(found.matches, [expected]);
        // Arguments that are a string of JSON are that JSON.
        let found = search(&service, of("echo \"café\"\nls C:\\dir")).await;
        assert_eq!(found.told(), [(3, Role::Model, MatchPlace::CallArguments, "sh", "c")]);
        // Keys and structure of an entry are not what it says.
        for absent in ["role", "content", "tool_calls", r"\u00e9", r"\n"] {
            assert_eq!(search(&service, of(absent)).await.seqs(), [0; 0], "{absent}");
        }
        service.seal().await;
    }
}

async fn a_pattern_is_a_text_or_a_regular_expression(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    let said = |text: &str| json!({"role": "user", "content": text}).to_string();
    let lines = "first line\r\nerror: E0308 at a.rs:7\nwarning: unused\nerror: E0599 at b.rs:9\n";
    service.append(SESSION, &[said(lines), said("a.rs? (b|c)")]).await;
    assert_eq!(search(&service, of("a.rs? (b|c)")).await.seqs(), [2], "nothing of a text is special");
    assert_eq!(search(&service, of("a.rs?")).await.seqs(), [2]);
    assert_eq!(search(&service, of("FIRST")).await.seqs(), [0; 0]);
    assert_eq!(search(&service, Search { ignore_case: true, ..of("FIRST") }).await.seqs(), [1]);
    let found = search(&service, regex(r"^error: E\d+")).await;
    assert_eq!(found.excerpts(), ["error: E0308", "error: E0599"]);
    let places: Vec<_> = found.matches.iter().map(|found| (found.first_byte, found.bytes)).collect();
    assert_eq!(places, [(12, 12), (51, 12)]);
    assert_eq!(search(&service, regex("line$")).await.excerpts(), ["line"], "before CR LF");
    assert_eq!(search(&service, regex("unused.error")).await.excerpts(), [""; 0]);
    assert_eq!(search(&service, regex("(?s)unused.error")).await.excerpts(), ["unused\nerror"]);
    assert_eq!(search(&service, regex("(?i)ERROR: e0599")).await.excerpts(), ["error: E0599"]);
    // What begins in an excerpt is not told again.
    let around = Search { is_regex: true, ..of(r"^error: E\d+") };
    assert_eq!(search(&service, around).await.excerpts(), [lines]);
    // An engine that goes back would take for ever, the more the longer the text.
    let long = format!("{}!", "a".repeat(4 << 20));
    service.append(SESSION, &[said(&long)]).await;
    for evil in ["(a+)+b", "(a|aa)+$b", "(.*)*(.*)*#", r"(a?){60}(a){60}b"] {
        assert_eq!(search(&service, regex(evil)).await.excerpts(), [""; 0], "{evil}");
    }
    assert_eq!(search(&service, regex("a{3}!$")).await.excerpts(), ["aaa!"]);
}

async fn any_version_of_a_log_is_searched(backend: Backend) {
    let mut service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    let said = |text: &str| json!({"role": "user", "content": format!("word {text}")}).to_string();
    // Segments of 1 and 2, of what is rewound, and of 5; the rest in the journal.
    service.append(SESSION, &[said("1"), said("2")]).await;
    service.append(SESSION, &[said("3")]).await;
    service.seal().await;
    service.append(SESSION, &[said("rewound")]).await;
    service.seal().await;
    service.rewind_to(SESSION, 2).await;
    service.append(SESSION, &[said("5")]).await;
    service.seal().await;
    service.append(SESSION, &[said("6"), said("6 again")]).await;
    let fork = pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        version: Some(5),
        session_id: "fork".to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    service.fork(fork).await.unwrap();
    service.append("sessions/fork", &[said("of the fork")]).await;
    let words = |texts: &[&str]| texts.iter().map(|text| format!("word {text}")).collect::<Vec<_>>();
    for _ in 0..2 {
        let mut cases = vec![
            (SESSION, oldest_first("word"), words(&["1", "2", "3", "5", "6", "6 again"])),
            ("sessions/fork", oldest_first("word"), words(&["1", "2", "3", "5", "of the fork"])),
        ];
        let at = |version| Search { at_version: Some(version), ..oldest_first("word") };
        cases.extend([
            (SESSION, at(0), vec![]),
            (SESSION, at(1), words(&["1", "2"])),
            (SESSION, at(3), words(&["1", "2", "3", "rewound"])),
            (SESSION, at(4), words(&["1", "2", "3"])),
            (SESSION, at(5), words(&["1", "2", "3", "5"])),
            ("sessions/fork", at(2), words(&["1", "2", "3"])),
        ]);
        let since = |first_version| Search { first_version, ..oldest_first("word") };
        cases.extend([
            (SESSION, since(1), words(&["1", "2", "3", "5", "6", "6 again"])),
            (SESSION, since(2), words(&["3", "5", "6", "6 again"])),
            // What the log goes on with behind what was rewound.
            (SESSION, since(3), words(&["5", "6", "6 again"])),
            (SESSION, since(4), words(&["5", "6", "6 again"])),
            (SESSION, since(6), words(&["6", "6 again"])),
            (SESSION, since(7), vec![]),
            (SESSION, since(u64::MAX), vec![]),
            ("sessions/fork", since(6), words(&["of the fork"])),
            (SESSION, Search { at_version: Some(3), ..since(3) }, words(&["rewound"])),
        ]);
        let range = |first_seq, last_seq| Search { first_seq, last_seq, ..oldest_first("word") };
        cases.extend([
            (SESSION, range(Some(2), Some(4)), words(&["2", "3", "5"])),
            (SESSION, range(Some(5), None), words(&["6", "6 again"])),
            (SESSION, range(None, Some(1)), words(&["1"])),
            (SESSION, range(Some(4), Some(3)), vec![]),
            (SESSION, range(Some(7), Some(u64::MAX)), vec![]),
        ]);
        for (session, request, mut expected) in cases {
            let request = Search { session: session.to_owned(), ..request };
            assert_eq!(search(&service, request.clone()).await.excerpts(), expected, "{request:?}");
            expected.reverse();
            let newest_first = Search { oldest_first: false, ..request };
            assert_eq!(search(&service, newest_first).await.excerpts(), expected);
        }
        service.seal().await;
        service = service.restart().await;
    }
    let refusal = try_search(&service, Search { at_version: Some(7), ..of("word") }).await.unwrap_err();
    assert_eq!(refusal.reason, "VERSION_NOT_FOUND");
}

async fn the_tool_of_a_result_is_known_wherever_its_call_lies(backend: Backend) {
    use pb::WireFormat::AnthropicMessages as Format;
    let mut service = Service::start(&backend).await;
    service.create("s", of_format(Format)).await;
    let calls = json!({"role": "assistant", "content": [
        {"type": "tool_use", "id": "c1", "name": "grep", "input": {}},
        {"type": "tool_use", "id": "c2", "name": "make", "input": {}}]});
    service.append(SESSION, &[user(Format, "begin"), calls.to_string()]).await;
    service.seal().await;
    // Results a turn each; one for an interrupted call; one for a call that never was.
    service.append(SESSION, &[result(Format, "c1", "", "word 1")]).await;
    service.seal().await;
    service.append(SESSION, &[user(Format, "go on")]).await;
    service.append(SESSION, &[result(Format, "c2", "", "word 2")]).await;
    service.append(SESSION, &[result(Format, "c9", "", "word 3")]).await;
    // The same id again, of another tool, in one turn with its result.
    let again = [call(Format, "c1", "list"), result(Format, "c1", "", "word 4")];
    service.append(SESSION, &again).await;
    let expected = [(3, "grep"), (5, "make"), (6, ""), (8, "list")];
    for _ in 0..2 {
        let tools = |found: &Searched| -> Vec<(u64, String)> {
            found.matches.iter().map(|found| (found.seq, found.tool_name.clone())).collect()
        };
        let owned: Vec<_> = expected.iter().map(|(seq, tool)| (*seq, (*tool).to_owned())).collect();
        assert_eq!(tools(&search(&service, oldest_first("word")).await), owned);
        let reversed: Vec<_> = owned.iter().rev().cloned().collect();
        assert_eq!(tools(&search(&service, of("word")).await), reversed);
        for (seq, tool) in expected.into_iter().filter(|(_, tool)| !tool.is_empty()) {
            let of_tool = Search { tool_names: vec![tool.to_owned()], ..of("word") };
            assert_eq!(search(&service, of_tool).await.seqs(), [seq]);
        }
        service.seal().await;
        service = service.restart().await;
    }
}

async fn entries_that_are_no_messages_are_searched_if_asked(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    let entries = vec![
        entry(pb::EntryKind::Message, json!({"role": "user", "content": "a word"}).to_string()),
        entry(pb::EntryKind::Meta, json!({"note": "a\nword"}).to_string()),
        pb::NewEntry { kind: 77, ..entry(pb::EntryKind::Meta, r#"{"word":1}"#) },
        // No role that the format knows: kept, and found all the same.
        entry(pb::EntryKind::Message, json!({"role": "narrator", "content": "a word"}).to_string()),
    ];
    service.persist(append_entries(SESSION, &fresh_id(), entries)).await.unwrap();
    let told = |seq, role| (seq, role, MatchPlace::Text, "", "");
    let found = search(&service, oldest_first("word")).await;
    assert_eq!(found.told(), [told(1, Role::User), told(4, Role::Other)]);
    let found = search(&service, Search { include_meta: true, ..oldest_first("word") }).await;
    let other = [2, 3, 4].map(|seq| told(seq, Role::Other));
    assert_eq!(found.told(), [&[told(1, Role::User)], &other[..]].concat());
    assert_eq!(found.excerpts()[1], "{\"note\":\"a\nword\"}");
}
