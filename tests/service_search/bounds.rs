//! What a search takes and gives at most.

use super::{Search, of, oldest_first, regex, search, try_search};
use crate::backends::{Backend, on_all_backends, on_embedded_backend};
use crate::service::{SESSION, Service, of_format};
use base64::Engine as _;
use futures::TryStreamExt as _;
use pb::search_transcript_response::Part;
use pb::transcript_service_client::TranscriptServiceClient;
use prost::Message as _;
use serde_json::json;
use tonic::Code;
use turnkeep::engine::{LogRange, Pattern, SearchTranscript};
use turnkeep::model::{SessionId, TenantId, Version};
use turnkeep::rpc::pb;
use turnkeep::store::meta::SessionKey;

on_all_backends!(
    pages_together_are_the_whole,
    no_more_of_the_log_is_fetched_than_the_matches_take,
    another_tenant_finds_nothing,
);
on_embedded_backend!(
    an_answer_fits_a_tool_result_unless_more_is_asked_for,
    large_answers_come_in_messages_that_every_client_takes,
    wrong_fields_are_refused_by_name,
);

fn said(text: &str) -> String {
    json!({"role": "user", "content": text}).to_string()
}

/// All pages of a search.
async fn all(service: &Service, request: Search) -> (Vec<pb::TranscriptMatch>, usize) {
    let (mut matches, mut pages, mut page_token) = (Vec::new(), 0, String::new());
    loop {
        let page = search(service, Search { page_token, ..request.clone() }).await;
        assert!(page.matches.len() <= usize::try_from(request.matches_max).unwrap());
        matches.extend(page.matches);
        pages += 1;
        if page.next_page_token.is_empty() {
            return (matches, pages);
        }
        page_token = page.next_page_token;
    }
}

async fn pages_together_are_the_whole(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    for i in 0..12 {
        let many = format!("é{i} hit and hit, {} hit", "x".repeat(i * 30));
        service.append(SESSION, &[said(&many), said("miss"), said("hit")]).await;
        if i % 4 == 1 {
            service.seal().await;
        }
    }
    for context in [0, 5, 1_000] {
        for oldest_first in [false, true] {
            let request =
                Search { context_characters: Some(context), oldest_first, unlimited: true, ..of("hit") };
            let (whole, pages) = all(&service, Search { matches_max: 1_000, ..request.clone() }).await;
            assert_eq!(pages, 1);
            let least = if context == 1_000 { 24 } else { 36 };
            assert!((least..=48).contains(&whole.len()), "{}", whole.len());
            for found in &whole {
                let at = usize::try_from(found.first_byte - found.excerpt_first_byte).unwrap();
                assert_eq!(&found.excerpt[at..at + 3], "hit");
            }
            let seqs: Vec<_> = whole.iter().map(|found| found.seq).collect();
            assert!(seqs.is_sorted_by(|a, b| if oldest_first { a <= b } else { a >= b }), "{seqs:?}");
            for matches_max in [1, 2, 7] {
                let (found, pages) = all(&service, Search { matches_max, ..request.clone() }).await;
                assert_eq!(found, whole);
                assert!(pages >= whole.len() / usize::try_from(matches_max).unwrap(), "{pages}");
            }
        }
    }
    // The version of the first page is that of all.
    let first = search(&service, Search { matches_max: 1, ..of("hit") }).await;
    service.append(SESSION, &[said("hit later")]).await;
    let next = Search { page_token: first.next_page_token, ..of("hit") };
    let rest = search(&service, Search { matches_max: 1_000, ..next.clone() }).await;
    assert_eq!((rest.header.version, rest.seqs().contains(&37)), (12, false));
    let refusal = try_search(&service, Search { at_version: Some(13), ..next }).await.unwrap_err();
    assert_eq!(refusal.metadata("field"), "page_token");
}

async fn no_more_of_the_log_is_fetched_than_the_matches_take(backend: Backend) {
    const SEGMENTS: u64 = 12;
    let (service, blobs) = Service::start_faulty(&backend, |_| ()).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    for i in 1..=SEGMENTS {
        service.append(SESSION, &[said(&format!("hit {i}"))]).await;
        service.seal().await;
    }
    let service = service.restart().await;
    for (request, expected) in [(of("hit"), [12, 11]), (oldest_first("hit"), [1, 2])] {
        let before = blobs.gets();
        let found = search(&service, Search { matches_max: 2, ..request }).await;
        assert_eq!(found.seqs(), expected);
        assert!(blobs.gets() - before <= 5, "{} blobs", blobs.gets() - before);
    }
    let before = blobs.gets();
    let found = search(&service, Search { matches_max: 2, first_seq: Some(7), ..of("hit 7") }).await;
    assert_eq!(found.seqs(), [7]);
    assert!(blobs.gets() - before <= 6);
    // A blob that is gone is no shorter log.
    let service = service.restart().await;
    backend.blob_keys().await.iter().for_each(|key| blobs.hide(key));
    let refusal = try_search(&service, of("hit")).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::DataLoss, "DATA_LOSS"));
}

async fn another_tenant_finds_nothing(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    service.append(SESSION, &[said("a secret")]).await;
    let search_as = async |tenant: TenantId| {
        let request = SearchTranscript {
            key: SessionKey { tenant, session: SessionId::parse("s").unwrap() },
            pattern: Pattern { source: "secret".to_owned(), is_regex: false, ignore_case: false },
            roles: vec![],
            tool_names: vec![],
            range: LogRange::default(),
            first_version: Version(0),
            oldest_first: false,
            include_outputs: true,
            include_meta: true,
            context_characters: 10,
            matches_max: 10,
            is_unlimited: true,
            from: None,
        };
        match service.engine().search_transcript(request).await {
            Ok((_, parts)) => Ok(parts.try_collect::<Vec<_>>().await.unwrap().len()),
            Err(error) => Err(error.to_string()),
        }
    };
    assert_eq!(search_as(TenantId::default_tenant()).await, Ok(2));
    let absent = try_search(&service, Search { session: "sessions/t".to_owned(), ..of("secret") }).await;
    let absent = absent.unwrap_err();
    assert_eq!(absent.kind(), (Code::NotFound, "SESSION_NOT_FOUND"));
    let foreign = search_as(TenantId::parse("foreign").unwrap()).await.unwrap_err();
    assert_eq!(foreign.replace("session s", "session t"), absent.message);
    service.delete(SESSION, false).await.unwrap();
    assert_eq!(try_search(&service, of("secret")).await.unwrap_err().reason, "SESSION_NOT_FOUND");
}

async fn an_answer_fits_a_tool_result_unless_more_is_asked_for(backend: Backend) {
    let service = Service::start(&backend).await;
    let limit = pb::ToolResultLimit { length: 3_000, reserve: Some(0), ..Default::default() };
    let profile = pb::ModelProfile { tool_result_limit: Some(limit), ..Default::default() };
    let session = pb::Session { profile: Some(profile), ..of_format(pb::WireFormat::OpenaiChat) };
    service.create("s", session).await;
    let texts: Vec<_> = (0..60).map(|i| said(&format!("\"{i}\"\n{} hit {0}", "é\"".repeat(50)))).collect();
    service.append(SESSION, &texts).await;
    let request = Search { matches_max: 1_000, ..of("hit") };
    let (mut found, mut page_token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let arguments = json!({"pattern": "hit", "matches_max": 1_000, "page_token": page_token});
        let page = search(&service, Search { page_token, ..request.clone() }).await;
        // As the client gives it to the model, and Python writes it.
        let mut client = service.client.clone();
        let told = client.answer(SESSION, "search_transcript", &arguments.to_string()).await.unwrap();
        let told = told.unwrap();
        assert!(page.matches.iter().all(|found| told.contains(&found.excerpt)), "{told}");
        let message = json!({"role": "tool", "tool_call_id": "call_1", "content": told}).to_string();
        let characters: usize =
            message.chars().map(|c| if c.is_ascii() { 1 } else { 6 * c.len_utf16() }).sum();
        assert!(characters <= 3_000, "{message}");
        pages += 1;
        found.extend(page.matches);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert!(pages > 10, "{pages}");
    let whole = search(&service, Search { unlimited: true, ..request }).await;
    assert_eq!(found, whole.matches);
    assert_eq!(whole.matches.len(), 60);
    // The first match is given in any case, as far as it fits.
    let long = format!("{}hit{}", "\u{1}".repeat(1_000), "\u{1}".repeat(1_000));
    service.append(SESSION, &[said(&long)]).await;
    let page = search(&service, Search { context_characters: Some(1_000), ..of("hit") }).await;
    assert_eq!((page.matches.len(), page.matches[0].first_byte), (1, 1_000));
    assert!(page.matches[0].excerpt.starts_with("hit\u{1}"), "{:?}", page.matches[0].excerpt);
    assert!(page.matches[0].excerpt.len() < 3_000 / 6 + 10);
}

async fn large_answers_come_in_messages_that_every_client_takes(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    let texts = vec![said(&format!("{0}hit{0}", "中".repeat(1_200))); 1_000];
    service.append(SESSION, &texts).await;
    let request =
        Search { context_characters: Some(1_000), matches_max: 1_000, unlimited: true, ..regex("hit") };
    let mut client = TranscriptServiceClient::connect(service.grpc_url()).await.unwrap();
    let mut parts = client.search_transcript(request).await.unwrap().into_inner();
    let (mut found, mut messages) = (0, 0);
    while let Some(message) = parts.message().await.unwrap() {
        assert!(message.encoded_len() < 2 << 20);
        messages += 1;
        if let Some(Part::Matches(matches)) = message.part {
            assert!(matches.matches.iter().all(|found| found.excerpt.chars().count() == 2_003));
            found += matches.matches.len();
        }
    }
    assert!(found == 1_000 && messages > 6, "{found} in {messages}");
}

async fn wrong_fields_are_refused_by_name(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(pb::WireFormat::OpenaiChat)).await;
    service.append(SESSION, &[said("a word"), said("a word")]).await;
    let page = search(&service, Search { matches_max: 1, ..of("word") }).await;
    assert_ne!(page.next_page_token, "");
    let with = |adjust: &dyn Fn(&mut Search)| {
        let mut request = of("word");
        adjust(&mut request);
        request
    };
    let cases = [
        ("session", with(&|search| search.session = "s".to_owned())),
        ("pattern", of("")),
        ("pattern", of(&"x".repeat(4_097))),
        ("pattern", regex("(")),
        ("pattern", regex(r"(?=a)b")),
        ("pattern", regex(r"(a)\1")),
        ("pattern", regex(r"(\w{1000}){1000}")),
        ("roles[1]", with(&|search| search.roles = vec![1, 0])),
        ("roles[0]", with(&|search| search.roles = vec![6])),
        ("tool_names", with(&|search| search.tool_names = vec!["x".to_owned(); 33])),
        ("tool_names[0]", with(&|search| search.tool_names = vec![String::new()])),
        ("tool_names[1]", with(&|search| search.tool_names = vec!["x".to_owned(), "x".repeat(257)])),
        ("context_characters", with(&|search| search.context_characters = Some(1_001))),
        ("matches_max", with(&|search| search.matches_max = 1_001)),
        (
            "include_tool_outputs",
            with(&|search| (search.include_tool_outputs, search.last_seq) = (true, Some(1))),
        ),
        ("page_token", with(&|search| search.page_token = "?".to_owned())),
        ("page_token", with(&|search| search.page_token = "MS8y".to_owned())),
        ("page_token", with(&|search| search.page_token = "MS9hYi8x".to_owned())),
    ];
    for (field, request) in cases {
        let refusal = try_search(&service, request.clone()).await.unwrap_err();
        assert_eq!(refusal.kind(), (Code::InvalidArgument, "INVALID_FIELD"), "{field} {request:?}");
        assert_eq!(refusal.metadata("field"), field);
        assert_eq!(refusal.fields[0].0, field);
    }
    // A token that was made up does no harm.
    for made_up in ["1/1/0/99", "1/99/0/0", "1/1/7/0", "1/0/0/0", "1/1/4294967295/18446744073709551615"] {
        let page_token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(made_up);
        for oldest_first in [false, true] {
            let request = Search { page_token: page_token.clone(), oldest_first, ..of("word") };
            assert!(search(&service, request).await.matches.len() <= 2);
        }
    }
}
