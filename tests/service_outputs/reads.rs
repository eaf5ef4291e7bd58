//! Any range of an output is what a reader of the whole would give.

use crate::backends::{Backend, on_all_backends, on_embedded_backend};
use crate::calls::{self, offload, read, stored};
use crate::service::{SESSION, Service, of_format};
use pb::WireFormat::{AnthropicMessages, OpenaiChat};
use pb::read_tool_output_request::{ByteRange, LineRange, Part};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};
use turnkeep::rpc::pb;

on_embedded_backend!(any_range_of_any_content_is_what_a_naive_reader_gives);
on_all_backends!(
    a_range_is_what_a_reader_of_the_whole_would_give,
    pages_fit_a_tool_result_and_lead_through_the_whole,
    only_the_frames_that_are_wanted_are_fetched,
);

async fn any_range_of_any_content_is_what_a_naive_reader_gives(backend: Backend) {
    let service = Service::start(&backend).await;
    let limit = pb::ToolResultLimit { length: 2_000, reserve: Some(0), ..Default::default() };
    let profile = pb::ModelProfile { tool_result_limit: Some(limit), ..Default::default() };
    service.create("s", pb::Session { profile: Some(profile), ..of_format(OpenaiChat) }).await;
    let contents = (
        proptest::collection::vec(
            prop_oneof![
                "\\PC{0,80}\n".prop_map(String::into_bytes),
                Just(b"\r\n".to_vec()),
                Just(b"\n\n\n".to_vec()),
                Just(vec![b'x'; 3_000]),
                Just("漢字👩‍👩‍👧‍👦".repeat(50).into_bytes()),
                proptest::collection::vec(any::<u8>(), 0..200),
            ],
            1..8,
        ),
        1_usize..300,
    )
        .prop_map(|(units, times)| units.concat().repeat(times))
        .prop_filter("is kept", |content| content.len() > 2_000);
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    for _ in 0..24 {
        let content = contents.new_tree(&mut runner).unwrap().current();
        let name = stored(offload(&service, SESSION, &content).await.unwrap()).output.unwrap().name;
        let all = i64::try_from(content.len()).unwrap();
        let lines = i64::try_from(lines_of(&content).len()).unwrap();
        for _ in 0..12 {
            let bytes = (-all - 5..all + 5, proptest::option::of(0..content.len() as u64 + 5));
            let (start, count) = bytes.new_tree(&mut runner).unwrap().current();
            assert_range(&service, &name, &content, Part::Bytes(ByteRange { start, count })).await;
            let of_lines = (-lines - 5..lines + 5, proptest::option::of(0..lines.unsigned_abs() + 5));
            let (start, count) = of_lines.new_tree(&mut runner).unwrap().current();
            if start != 0 {
                assert_range(&service, &name, &content, Part::Lines(LineRange { start, count })).await;
            }
        }
        for count in [0, 1, 3, u64::MAX] {
            assert_range(&service, &name, &content, Part::HeadLines(count)).await;
            assert_range(&service, &name, &content, Part::TailLines(count)).await;
        }
    }
}

fn lines_of(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

/// What a range is, by the plainest reading.
fn naive(content: &[u8], part: &Part) -> Vec<u8> {
    let lines = lines_of(content);
    let place = |start: i64, first: i64, all: usize| {
        let all = i64::try_from(all).unwrap();
        let start = if start < 0 { (all + start).max(0) } else { (start - first).clamp(0, all) };
        usize::try_from(start).unwrap()
    };
    let count = |count: Option<u64>| usize::try_from(count.unwrap_or(u64::MAX)).unwrap();
    match *part {
        Part::Bytes(range) => {
            let start = place(range.start, 0, content.len());
            content[start..].iter().copied().take(count(range.count)).collect()
        }
        Part::Lines(range) => lines[place(range.start, 1, lines.len())..]
            .iter()
            .take(count(range.count))
            .copied()
            .collect::<Vec<_>>()
            .concat(),
        Part::HeadLines(n) => lines.into_iter().take(count(Some(n))).collect::<Vec<_>>().concat(),
        Part::TailLines(n) => {
            let skipped = lines.len().saturating_sub(count(Some(n)));
            lines.into_iter().skip(skipped).collect::<Vec<_>>().concat()
        }
        Part::Search(_) => panic!("no range"),
    }
}

async fn assert_range(service: &Service, name: &str, content: &[u8], part: Part) {
    let request =
        pb::ReadToolOutputRequest { name: name.to_owned(), part: Some(part.clone()), ..Default::default() };
    let expected = naive(content, &part);
    let unlimited = pb::ReadToolOutputRequest { unlimited: true, ..request.clone() };
    let whole = read(service, unlimited).await.unwrap();
    assert!(whole.bytes == expected, "{part:?}: {} of {} bytes", whole.bytes.len(), expected.len());
    assert!(whole.end.is_complete);
    let page = read(service, request).await.unwrap();
    assert!(expected.starts_with(&page.bytes), "{part:?}");
    let text = serde_json::json!({"role": "tool", "content": String::from_utf8_lossy(&page.bytes)});
    assert!(text.to_string().len() <= 2_000, "{part:?}");
    assert_eq!(page.end.is_complete, page.bytes.len() == expected.len(), "{part:?}");
    if page.end.is_complete {
        return;
    }
    // It goes on where it says.
    assert!(!page.bytes.is_empty(), "{part:?}");
    let first = page.first.unwrap();
    assert_eq!(page.end.next_byte, Some(first.0 + page.bytes.len() as u64));
    let breaks = calls::line_breaks(&page.bytes);
    assert_eq!(page.end.next_line, Some(first.1 + breaks));
    // Lines are whole if one fits.
    let of_bytes = matches!(part, Part::Bytes(_));
    assert!(of_bytes || breaks == 0 || page.bytes.ends_with(b"\n"), "{part:?}");
}

async fn a_range_is_what_a_reader_of_the_whole_would_give(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(AnthropicMessages)).await;
    // Several frames, of which one ends within a line and one begins with one.
    let line = format!("{}\n", "x".repeat((256 << 10) / 64 - 1));
    let content = [line.repeat(80), "y".repeat(600_000), "\nlast".to_owned()].concat().into_bytes();
    let name = stored(offload(&service, SESSION, &content).await.unwrap()).output.unwrap().name;
    let frame = 256 << 10;
    for (start, count) in [
        (0, 1),
        (frame - 1, 2),
        (frame, 1),
        (frame, 256 << 10),
        (-1, 1),
        (-5, 4),
        (i64::MIN, 3),
        (i64::MAX, 3),
    ] {
        let part = Part::Bytes(ByteRange { start, count: Some(count) });
        let request = pb::ReadToolOutputRequest {
            name: name.clone(),
            part: Some(part.clone()),
            unlimited: true,
            ..Default::default()
        };
        assert!(read(&service, request).await.unwrap().bytes == naive(&content, &part), "{start} {count}");
    }
    for (start, count) in
        [(1, 1), (64, 1), (65, 1), (63, 3), (80, 2), (81, 1), (82, 1), (82, 9), (83, 1), (-1, 1), (-2, 1)]
    {
        let part = Part::Lines(LineRange { start, count: Some(count) });
        let request = pb::ReadToolOutputRequest {
            name: name.clone(),
            part: Some(part.clone()),
            unlimited: true,
            ..Default::default()
        };
        let found = read(&service, request).await.unwrap();
        assert!(found.bytes == naive(&content, &part), "lines {start} {count}");
    }
    let wrong = [
        (Some(Part::Lines(LineRange { start: 0, count: None })), None, false, "lines.start"),
        (None, Some(0), false, "page_bytes"),
        (None, Some((1 << 20) + 1), false, "page_bytes"),
        (None, Some(5), true, "page_bytes"),
    ];
    for (part, page_bytes, unlimited, field) in wrong {
        let request = pb::ReadToolOutputRequest { name: name.clone(), part, page_bytes, unlimited };
        assert_eq!(read(&service, request).await.unwrap_err().metadata("field"), field);
    }
}

async fn pages_fit_a_tool_result_and_lead_through_the_whole(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let content: Vec<u8> = (1..=30_000).flat_map(|i| format!("{i}: \"漢字\" <b>\n").into_bytes()).collect();
    let name = stored(offload(&service, SESSION, &content).await.unwrap()).output.unwrap().name;
    let mut all = Vec::new();
    let mut start = 1;
    loop {
        let part = Part::Lines(LineRange { start, count: None });
        let request =
            pb::ReadToolOutputRequest { name: name.clone(), part: Some(part), ..Default::default() };
        let page = read(&service, request).await.unwrap();
        assert_eq!(page.first, Some((all.len() as u64, u64::try_from(start).unwrap())));
        let message =
            serde_json::json!({"role": "tool", "content": String::from_utf8(page.bytes.clone()).unwrap()});
        assert!(message.to_string().len() < 80_000);
        // Offloaded again it would be inline.
        let again = offload(&service, SESSION, &page.bytes).await.unwrap();
        assert!(matches!(again, pb::offload_tool_output_response::Outcome::Inline(_)), "{again:?}");
        all.extend(page.bytes);
        if page.end.is_complete {
            break;
        }
        start = i64::try_from(page.end.next_line.unwrap()).unwrap();
    }
    assert!(all == content);
    // By bytes, in pages of the caller's; no character is cut.
    let (mut all, mut at) = (Vec::new(), 0);
    loop {
        let part = Part::Bytes(ByteRange { start: at, count: None });
        let request = pb::ReadToolOutputRequest {
            name: name.clone(),
            part: Some(part),
            page_bytes: Some(99_991),
            ..Default::default()
        };
        let page = read(&service, request).await.unwrap();
        assert!(page.bytes.len() <= 99_991);
        std::str::from_utf8(&page.bytes).unwrap();
        all.extend(page.bytes);
        if page.end.is_complete {
            break;
        }
        at = i64::try_from(page.end.next_byte.unwrap()).unwrap();
    }
    assert!(all == content);
}

async fn only_the_frames_that_are_wanted_are_fetched(backend: Backend) {
    let (service, blobs) = Service::start_faulty(&backend, |_| ()).await;
    service.create("s", of_format(OpenaiChat)).await;
    // Bytes that do not compress: what is fetched is what is decoded.
    let mut state = 1_u64;
    let content: Vec<u8> = (0..32 << 20)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = state.to_be_bytes()[3];
            if byte < 3 { b'\n' } else { byte | 0x80 }
        })
        .collect();
    let output = stored(offload(&service, SESSION, &content).await.unwrap()).output.unwrap();
    let middle = i64::try_from(output.lines / 2).unwrap();
    let parts = [
        Part::Lines(LineRange { start: middle, count: Some(200) }),
        Part::Bytes(ByteRange { start: 16 << 20, count: Some(10_000) }),
        Part::HeadLines(200),
        Part::TailLines(200),
    ];
    for part in parts {
        let before = blobs.bytes_got();
        let request = pb::ReadToolOutputRequest {
            name: output.name.clone(),
            part: Some(part.clone()),
            unlimited: true,
            ..Default::default()
        };
        assert!(read(&service, request).await.unwrap().bytes == naive(&content, &part));
        let fetched = blobs.bytes_got() - before;
        assert!(fetched < 800_000, "{part:?}: {fetched}");
    }
    assert!(calls::whole(&service, &output.name).await == content);
}
