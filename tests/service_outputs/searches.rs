//! A search finds what a search of the whole would find.

use crate::backends::{Backend, on_all_backends};
use crate::calls::{offload, read, stored};
use crate::service::{Refusal, SESSION, Service, of_format};
use pb::WireFormat::OpenaiChat;
use pb::read_tool_output_request::{Part, Search};
use pb::read_tool_output_response::Line;
use turnkeep::rpc::pb;

on_all_backends!(
    matches_come_with_their_context,
    a_search_ends_at_its_limits_and_goes_on_from_there,
    long_lines_are_shown_where_they_match,
    a_wrong_search_is_refused,
);

async fn search(service: &Service, name: &str, search: Search) -> Result<crate::calls::Read, Refusal> {
    let part = Some(Part::Search(search));
    read(service, pb::ReadToolOutputRequest { name: name.to_owned(), part, ..Default::default() }).await
}

async fn kept(service: &Service, content: &[u8]) -> String {
    stored(offload(service, SESSION, content).await.unwrap()).output.unwrap().name
}

fn text(line: &Line) -> String {
    String::from_utf8(line.text.to_vec()).unwrap()
}

async fn matches_come_with_their_context(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    // Lines of three frames; some have a carriage return.
    let lines: Vec<String> = (1..=40_000)
        .map(|i| match i % 1_000 {
            0 => format!("ERROR {i}: disk (full)\r"),
            _ => format!("{i} all is well"),
        })
        .collect();
    let content = lines.join("\n");
    let name = kept(&service, content.as_bytes()).await;
    for context in [0, 2, 700] {
        let context = std::cmp::min(context, 100);
        let found = search(
            &service,
            &name,
            Search {
                pattern: "DISK (full)".to_owned(),
                ignore_case: true,
                context_lines: context,
                matches_max: 7,
                ..Default::default()
            },
        )
        .await
        .unwrap();
        let expected: Vec<_> = (1..=lines.len())
            .filter(|i| (1..=7).any(|n| (n * 1_000_usize).abs_diff(*i) <= context as usize))
            .collect();
        assert_eq!(found.lines.len(), expected.len(), "{context}");
        for (line, i) in found.lines.iter().zip(expected) {
            let whole = lines[i - 1].trim_end_matches('\r');
            let byte: usize = lines[..i - 1].iter().map(|line| line.len() + 1).sum();
            let expected = Line {
                line: i as u64,
                first_byte: byte as u64,
                text: whole.as_bytes().to_vec().into(),
                is_match: i % 1_000 == 0,
                is_cut: false,
            };
            assert_eq!(*line, expected);
        }
        assert_eq!((found.end.is_complete, found.end.next_line), (false, Some(7_001 + u64::from(context))));
    }
    // A pattern, anchored to the line.
    let pattern = Search {
        pattern: "^39[0-9]{3} .*well$".to_owned(),
        is_regex: true,
        matches_max: 2_000,
        ..Default::default()
    };
    let found = search(&service, &name, pattern).await.unwrap();
    let numbers: Vec<_> = found.lines.iter().map(|line| line.line).collect();
    assert_eq!(numbers, (39_001..=39_999).collect::<Vec<_>>());
    assert!(found.end.is_complete);
    let nothing = Search { pattern: "nowhere".to_owned(), ..Default::default() };
    let found = search(&service, &name, nothing).await.unwrap();
    assert_eq!((found.lines.len(), found.end.is_complete), (0, true));
    // Not a pattern if it is not said to be one.
    let literal = Search { pattern: "^39".to_owned(), ..Default::default() };
    assert_eq!(search(&service, &name, literal).await.unwrap().lines, []);
}

async fn a_search_ends_at_its_limits_and_goes_on_from_there(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let lines: Vec<String> = (1..=30_000).map(|i| format!("{i} \"hit\" {}", "é".repeat(20))).collect();
    let name = kept(&service, (lines.join("\n") + "\n").as_bytes()).await;
    let (mut first_line, mut found, mut pages) = (1, Vec::new(), 0);
    loop {
        let next =
            Search { pattern: "hit".to_owned(), matches_max: 10_000, first_line, ..Default::default() };
        let page = search(&service, &name, next).await.unwrap();
        let shown = page
            .lines
            .iter()
            .map(|line| format!("{}: {}", line.line, text(line)))
            .collect::<Vec<_>>()
            .join("\n");
        assert!(serde_json::json!(shown).to_string().len() < 80_000);
        found.extend(page.lines);
        pages += 1;
        match page.end.next_line {
            Some(next) => first_line = next,
            None => break,
        }
        assert!(!page.end.is_complete);
    }
    assert!(pages > 10, "{pages}");
    assert_eq!(found.iter().map(text).collect::<Vec<_>>(), lines);
    // All at once for who wants it.
    let part =
        Search { pattern: "hit".to_owned(), matches_max: 10_000, first_line: 25_001, ..Default::default() };
    let request = pb::ReadToolOutputRequest {
        name,
        part: Some(Part::Search(part)),
        unlimited: true,
        ..Default::default()
    };
    let all = read(&service, request).await.unwrap();
    assert_eq!(all.lines.iter().map(text).collect::<Vec<_>>(), lines[25_000..]);
    assert!(all.end.is_complete);
}

async fn long_lines_are_shown_where_they_match(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let filler = "漢".repeat(1 << 20);
    let content = format!("first\n{filler}NEEDLE{filler}\nsecond NEEDLE\n{filler}");
    let name = kept(&service, content.as_bytes()).await;
    let needle = Search { pattern: "NEEDLE".to_owned(), context_lines: 1, ..Default::default() };
    let found = search(&service, &name, needle).await.unwrap();
    let [first, long, second, last] = &found.lines[..] else { panic!("{} lines", found.lines.len()) };
    assert_eq!((text(first), first.is_match, first.is_cut), ("first".to_owned(), false, false));
    assert!(long.is_match && long.is_cut && text(long).contains("漢NEEDLE漢"));
    assert!((1_990..=2_000).contains(&long.text.len()), "{}", long.text.len());
    let at = usize::try_from(long.first_byte).unwrap();
    assert_eq!(long.text, content.as_bytes()[at..at + long.text.len()]);
    assert_eq!((text(second), second.is_match, second.line), ("second NEEDLE".to_owned(), true, 3));
    assert!(!last.is_match && last.is_cut && text(last).starts_with("漢漢"));
    assert_eq!(last.first_byte, content.rfind('\n').unwrap() as u64 + 1);
    // Wherever the pieces of a long line part.
    for at in [(1 << 20) - 3, (1 << 20) + 1, (256 << 10) - 2, 3 << 20] {
        let content = [vec![b'x'; at], b"NEEDLE".to_vec(), vec![b'x'; 2 << 20]].concat();
        let name = kept(&service, &content).await;
        let needle = Search { pattern: "NEEDLE".to_owned(), ..Default::default() };
        let found = search(&service, &name, needle).await.unwrap();
        assert_eq!(found.lines.len(), 1, "{at}");
        assert!(text(&found.lines[0]).contains("NEEDLE"), "{at}");
    }
}

async fn a_wrong_search_is_refused(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let name = kept(&service, &vec![b'x'; 100_000]).await;
    let regex = |pattern: &str| Search { pattern: pattern.to_owned(), is_regex: true, ..Default::default() };
    let table = [
        (regex(""), "search.pattern"),
        (regex("("), "search.pattern"),
        (regex("(?=x)"), "search.pattern"),
        (regex(&"x".repeat(4_097)), "search.pattern"),
        (regex("((x{100}){100}){100}"), "search.pattern"),
        (Search { context_lines: 101, ..regex("x") }, "search.context_lines"),
        (Search { matches_max: 10_001, ..regex("x") }, "search.matches_max"),
    ];
    for (wrong, field) in table {
        assert_eq!(search(&service, &name, wrong).await.unwrap_err().metadata("field"), field);
    }
    let part = Some(Part::Search(regex("x")));
    let request = pb::ReadToolOutputRequest { name, part, page_bytes: Some(1), ..Default::default() };
    assert_eq!(read(&service, request).await.unwrap_err().metadata("field"), "page_bytes");
}
