//! Payloads come back byte for byte, whatever JSON they are and wherever they
//! lie: in the journal, in a segment, in one that was rolled up, in an export.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/messages.rs"]
mod messages;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_all_backends, on_embedded_backend};
use pb::WireFormat::{self, AnthropicMessages, Opaque};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use prost::Message as _;
use service::{SESSION, Service, append, append_entries, entry, fresh_id, message, of_format};
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tonic::Code;
use turnkeep::export::{self, Layout};
use turnkeep::limits::{ENTRY_BYTES_MAX, REQUEST_BYTES_MAX};
use turnkeep::rpc::pb;

on_all_backends!(any_object_comes_back, notorious_objects_come_back);
on_embedded_backend!(objects_of_any_depth_come_back, an_entry_and_a_request_may_be_as_large_as_the_limits);

/// How a payload is stored: on one line.
fn on_one_line(payload: &str) -> String {
    payload.replace(['\n', '\r'], " ")
}

/// Persists payloads in several turns and reads them back from everywhere.
async fn check(service: &Service, backend: &Backend, format: WireFormat, payloads: &[String]) {
    let name = service.create("", of_format(format)).await.name;
    let expected: Vec<_> = payloads.iter().map(|payload| on_one_line(payload)).collect();
    let is_whole = async |service: &Service, place: &str| {
        let log = service.read(&name).await;
        assert_eq!(log.payloads(), expected, "{format:?} {place}");
        let stored = log.entries.iter().map(|entry| entry.payload.as_ref());
        let lines = export::plain(stored.clone(), Layout::JsonLines);
        let lines = std::str::from_utf8(&lines).unwrap().split_terminator('\n');
        assert!(lines.eq(&expected), "{place}: JSON Lines");
        let array = export::plain(stored, Layout::JsonArray);
        serde_json::from_slice::<Vec<serde::de::IgnoredAny>>(&array).unwrap();
        if format == Opaque {
            assert_eq!(service.window(&name).await.payloads(), expected, "{place}: window");
        }
    };
    for (i, turn) in payloads.chunks(payloads.len().div_ceil(5)).enumerate() {
        let kind = if i == 0 && format != Opaque { pb::EntryKind::Meta } else { pb::EntryKind::Message };
        let entries = turn.iter().map(|payload| entry(kind, payload)).collect();
        let mut request = append_entries(&name, &fresh_id(), entries);
        request.keep_tool_results = true;
        let answer = service.persist(request).await.unwrap();
        assert_eq!(answer.changed_entries, []);
        if i == 0 {
            is_whole_so_far(service, &name, &expected).await;
        }
        service.seal().await;
    }
    is_whole(service, "sealed").await;
    let segments = backend.rows().await.segments;
    if payloads.len() >= 5 {
        service.engine().roll_up_due().await.unwrap();
        assert!(backend.rows().await.segments < segments);
    }
    service.append::<&str>(&name, &[]).await;
    is_whole(service, "rolled up").await;
}

async fn is_whole_so_far(service: &Service, name: &str, expected: &[String]) {
    let journaled = service.read(name).await.payloads();
    assert_eq!(journaled, expected[..journaled.len()], "in the journal");
    assert!(!journaled.is_empty());
}

fn blanks() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => Just(String::new()),
        1 => prop::collection::vec(prop::sample::select(vec![" ", "\t", "\n", "\r\n", "\r"]), 0..4)
            .prop_map(|blanks| blanks.concat()),
    ]
}

fn string() -> impl Strategy<Value = String> {
    let pieces = [
        "a",
        "role",
        "user",
        "tool",
        " ",
        "é",
        "\u{2028}",
        "\u{7f}",
        "\u{ffff}",
        "😀",
        "\u{10ffff}",
        "'",
        "}",
        "{",
        "],",
        "\\\"",
        "\\\\",
        "\\/",
        "\\b",
        "\\f",
        "\\n",
        "\\r",
        "\\t",
        "\\u0000",
        "\\u000a",
        "\\u00E9",
        "\\ud800",
        "\\uDC00",
        "\\ud83d\\ude00",
        "\\udc00\\ud800",
        "\\\\u0000",
        "\\\\n",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..6)
        .prop_map(|pieces| format!("\"{}\"", pieces.concat()))
}

fn key() -> impl Strategy<Value = String> {
    let known = [
        "role",
        "content",
        "type",
        "id",
        "tool_calls",
        "tool_call_id",
        "call_id",
        "parts",
        "text",
        "functionCall",
        "functionResponse",
        "toolUse",
        "toolUseId",
        "toolResult",
        "tool_use_id",
        "input",
        "output",
        "payload",
        "seq",
        "turnkeep_verbatim",
        "",
        "reasoning",
        "summary",
        "signature",
        "image",
        "source",
        "data",
    ];
    prop_oneof![3 => prop::sample::select(known.to_vec()).prop_map(|key| format!("\"{key}\"")), 1 => string()]
}

fn scalar() -> impl Strategy<Value = String> {
    let literals = [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1.0",
        "1.00",
        "-0.0E-999",
        "1e400",
        "-1E+400",
        "12345678901234567890123",
        "0.1000000000000000055511151231257827",
        "1e1",
        "10E0",
        "\"\"",
        "\"user\"",
        "\"assistant\"",
        "\"model\"",
        "\"tool\"",
        "\"tool_use\"",
        "\"tool_result\"",
        "\"function_call\"",
        "\"function_call_output\"",
        "\"reasoning\"",
        "\"message\"",
        "\"text\"",
        "[]",
        "{}",
        "[ ]",
        "{\n}",
    ];
    prop_oneof![prop::sample::select(literals.to_vec()).prop_map(str::to_owned), string()]
}

/// Values between brackets, with blanks anywhere.
fn within(open: &'static str, elements: Vec<String>, blanks: &[String], close: &'static str) -> String {
    let blank = |i: usize| blanks.get(i % blanks.len().max(1)).map_or("", String::as_str);
    let mut text = format!("{open}{}", blank(0));
    for (i, element) in elements.into_iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        text.extend([blank(2 * i + 1), &element, blank(2 * i + 2)]);
    }
    text + close
}

fn member(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (key(), blanks(), blanks(), value).prop_map(|(key, a, b, value)| format!("{key}{a}:{b}{value}"))
}

fn object(value: impl Strategy<Value = String> + 'static) -> impl Strategy<Value = String> {
    (prop::collection::vec(member(value), 0..5), prop::collection::vec(blanks(), 0..4))
        .prop_map(|(members, blanks)| within("{", members, &blanks, "}"))
}

fn value() -> impl Strategy<Value = String> {
    scalar().prop_recursive(4, 24, 5, |inner| {
        let elements = prop::collection::vec(inner.clone(), 0..5);
        let array = (elements, prop::collection::vec(blanks(), 0..4))
            .prop_map(|(elements, blanks)| within("[", elements, &blanks, "]"));
        prop_oneof![array, object(inner)]
    })
}

/// Any JSON object, as anybody might write it.
fn payload() -> impl Strategy<Value = String> {
    (blanks(), object(value()), blanks()).prop_map(|(a, object, b)| a + &object + &b)
}

async fn any_object_comes_back(backend: Backend) {
    let service = Service::start(&backend).await;
    let mut runner = TestRunner::new(Config { cases: 16, failure_persistence: None, ..Config::default() });
    let cases = (prop::sample::select(messages::ALL.to_vec()), prop::collection::vec(payload(), 20..120));
    let checked = runner.run(&cases, |(format, payloads)| {
        block_in_place(|| Handle::current().block_on(check(&service, &backend, format, &payloads)));
        Ok(())
    });
    checked.unwrap();
}

async fn notorious_objects_come_back(backend: Backend) {
    let service = Service::start(&backend).await;
    let notorious = [
        "{}",
        "  { }  ",
        "\r\n{\n\"a\"\r:\t1\n}\r\n",
        r#"{"b":1,"a":2,"b":3,"":4,"":5}"#,
        r#"{"n":[12345678901234567890123,1e400,-0,-0.0,1.0,1.00,1E+2,0.1e-9999]}"#,
        r#"{"s":"\u0000\ud99c 보유현황\udc00\ud83d\ude00 \\ud83d \/ \u002F"}"#,
        r#"{"role":"user","content":""}"#,
        r#"{"role":"assistant","content":null,"tool_calls":[]}"#,
        r#"{"role":"assistant","content":[{"type":"thinking","thinking":"","signature":"EqQB+/=="},{"type":"redacted_thinking","data":"x"}]}"#,
        r#"{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AA=="}}]}"#,
        r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAAAA=="}"#,
        r#"{"role":"model","parts":[{"text":"","thoughtSignature":"AA=="},{"functionCall":{"name":"f","args":{"z":1,"a":2}}}]}"#,
        r#"{"turnkeep_verbatim":{"line":1,"offset":0,"text":"}\n"}}"#,
        r#"{"seq":1,"at":0,"kind":"message","turn":1,"tokens":0,"payload":{}}"#,
        "{\"control\":\"\u{7f}\u{80}\u{2028}\u{2029}\u{feff}\u{fffe}\u{10ffff}\"}",
        "{\"a\":{\"a\":{\"a\":[[[[{\"a\":[]}]]]]}}}",
        r#"{"role":7,"content":{"parts":[null]},"parts":"x","type":[],"id":{},"call_id":1}"#,
    ];
    let notorious = notorious.map(str::to_owned);
    for format in messages::ALL {
        check(&service, &backend, format, &notorious).await;
    }
}

async fn objects_of_any_depth_come_back(backend: Backend) {
    let service = Service::start(&backend).await;
    let nested = |levels: usize, open: &str, inner: &str, close: &str| {
        format!(r#"{{"content":{}{inner}{},"role":"user"}}"#, open.repeat(levels), close.repeat(levels))
    };
    let deep = [
        nested(10_000, "[", "1", "]"),
        nested(10_000, r#"{"content":"#, "[]", "}"),
        nested(10_000, r#"[{"parts":"#, "\"\"", "}]"),
        nested(10_000, r#"[{"type":"tool_result","content":"#, "\"\"", "}]"),
        nested(200_000, "[", "", "]"),
    ];
    for format in messages::ALL {
        check(&service, &backend, format, &deep).await;
        let name = service.create("", of_format(format)).await.name;
        let mut request = append(&name, &fresh_id(), &deep);
        request.keep_tool_results = format == AnthropicMessages;
        assert_eq!(service.persist(request).await.unwrap().changed_entries, []);
        let list = service::snapshot(&name, &deep);
        assert_eq!(service.persist(list).await.unwrap().version, 1, "nothing is new");
        service.window(&name).await;
    }
}

async fn an_entry_and_a_request_may_be_as_large_as_the_limits(backend: Backend) {
    /// Bytes of a second payload, which then fills the request.
    const ABOUT: usize = 50_000;
    let service = Service::start(&backend).await;
    service.create("s", of_format(Opaque)).await;
    let sized = |bytes: usize| format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes - 8));
    let largest = sized(ENTRY_BYTES_MAX);
    let answer = service.append(SESSION, std::slice::from_ref(&largest)).await;
    assert_eq!((answer.last_seq, largest.len()), (1, ENTRY_BYTES_MAX));
    let request = |entries: &[pb::NewEntry]| append_entries(SESSION, "full", entries.to_vec());
    let mut entries = vec![message(&largest), message(sized(ABOUT))];
    let rest = ABOUT + REQUEST_BYTES_MAX - request(&entries).encoded_len();
    entries[1] = message(sized(rest));
    let full = request(&entries);
    assert_eq!(full.encoded_len(), REQUEST_BYTES_MAX);
    assert_eq!(service.persist(full).await.unwrap().last_seq, 3);
    entries[1] = message(sized(rest + 1));
    let refusal = service.persist(request(&entries)).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::OutOfRange, "REQUEST_TOO_LARGE"));
    entries.truncate(1);
    entries[0] = message(sized(ENTRY_BYTES_MAX + 1));
    let refusal = service.persist(request(&entries)).await.unwrap_err();
    assert_eq!(refusal.metadata("field"), "append.entries[0].payload");
    service.persist(append(SESSION, &fresh_id(), &["{}"])).await.unwrap();
    service.seal().await;
    let service = service.restart().await;
    let expected = [largest.clone(), largest, sized(rest), "{}".to_owned()];
    assert!(service.read(SESSION).await.payloads() == expected);
    assert!(service.window(SESSION).await.payloads() == expected);
}
