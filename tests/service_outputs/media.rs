//! Pictures and documents that are too large and come with a persist.

use crate::backends::{Backend, on_all_backends};
use crate::calls;
use crate::service::{SESSION, Service, append, of_format, snapshot};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pb::WireFormat::{self, AnthropicMessages, BedrockConverse, GeminiContents, OpenaiChat, OpenaiResponses};
use serde_json::{Value, json};
use turnkeep::rpc::pb;

on_all_backends!(
    a_picture_that_is_too_large_is_an_output_in_every_format,
    a_list_may_have_a_picture_or_the_text_in_its_place,
    a_result_that_is_too_long_with_a_picture_that_is_too_large_gives_way_twice,
    media_stay_whole_if_the_request_says_so,
    a_model_that_takes_no_pictures_is_sent_none,
);

const LIMITS: pb::MediaLimits = pb::MediaLimits {
    image_bytes: 5_000,
    image_pixels: 500,
    document_bytes: 6_000,
    images: None,
    documents: None,
};

fn limited(format: WireFormat) -> pb::Session {
    let profile = pb::ModelProfile { media_limits: Some(LIMITS), ..Default::default() };
    pb::Session { profile: Some(profile), ..of_format(format) }
}

/// Bytes that begin as a picture of that size.
fn png(width: u32, length: usize) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend([width.to_be_bytes(), 9_u32.to_be_bytes()].concat());
    bytes.extend((bytes.len()..length).map(|i| u8::try_from(i * 7 % 251).unwrap()));
    bytes
}

fn image(format: WireFormat, bytes: &[u8]) -> Value {
    let data = STANDARD.encode(bytes);
    let url = format!("data:image/png;base64,{data}");
    match format {
        OpenaiResponses => json!({"type": "input_image", "image_url": url}),
        AnthropicMessages => {
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
        }
        GeminiContents => json!({"inlineData": {"mimeType": "image/png", "data": data}}),
        BedrockConverse => json!({"image": {"format": "png", "source": {"bytes": data}}}),
        _ => json!({"type": "image_url", "image_url": {"url": url}}),
    }
}

fn text(format: WireFormat, text: &str) -> Value {
    match format {
        OpenaiResponses => json!({"type": "input_text", "text": text}),
        GeminiContents | BedrockConverse => json!({"text": text}),
        _ => json!({"type": "text", "text": text}),
    }
}

fn question(format: WireFormat, blocks: &[Value]) -> String {
    let member = if format == GeminiContents { "parts" } else { "content" };
    json!({"role": "user", member: blocks}).to_string()
}

fn call(format: WireFormat) -> String {
    let call = match format {
        OpenaiResponses => {
            json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "shot", "arguments": "{}"})
        }
        AnthropicMessages => {
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "shot", "input": {}}]})
        }
        GeminiContents => {
            json!({"role": "model", "parts": [{"functionCall": {"id": "call_1", "name": "shot", "args": {}}}]})
        }
        BedrockConverse => {
            json!({"role": "assistant", "content": [{"toolUse": {"toolUseId": "call_1", "name": "shot", "input": {}}}]})
        }
        _ => json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "shot", "arguments": "{}"}}]}),
    };
    call.to_string()
}

fn result(format: WireFormat, blocks: &[Value]) -> String {
    let result = match format {
        OpenaiResponses => json!({"type": "function_call_output", "call_id": "call_1", "output": blocks}),
        AnthropicMessages => {
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": blocks}]})
        }
        GeminiContents => json!({"role": "user", "parts": [{"functionResponse": {
            "id": "call_1", "name": "shot", "response": {"output": "see"}, "parts": blocks}}]}),
        BedrockConverse => {
            json!({"role": "user", "content": [{"toolResult": {"toolUseId": "call_1", "content": blocks}}]})
        }
        _ => json!({"role": "tool", "tool_call_id": "call_1", "content": blocks}),
    };
    result.to_string()
}

async fn a_picture_that_is_too_large_is_an_output_in_every_format(backend: Backend) {
    let mut service = Service::start(&backend).await;
    let [large, wide, small] = [png(500, 5_001), png(501, 90), png(500, 5_000)];
    for (i, format) in [OpenaiChat, OpenaiResponses, AnthropicMessages, GeminiContents, BedrockConverse]
        .into_iter()
        .enumerate()
    {
        let name = service.create(&format!("s{i}"), limited(format)).await.name;
        let [large_block, wide_block, small_block] =
            [&large, &wide, &small].map(|bytes| image(format, bytes));
        let asked = question(format, &[text(format, "look"), large_block.clone(), small_block.clone()]);
        let seen = result(format, &[wide_block.clone(), small_block.clone()]);
        let answer = service.append(&name, &[&asked, &call(format), &seen]).await;
        let [first, second] = &answer.offloaded_results[..] else { panic!("{answer:?}") };
        assert_eq!((first.seq, first.tool_call_id.as_str(), first.bytes), (1, "", 5_001));
        assert_eq!((second.seq, second.tool_call_id.as_str(), second.bytes), (3, "call_1", 90));
        assert!(answer.window_id.is_empty());
        let log = service.read(&name).await;
        assert_eq!(answer.changed_entries, [log.entries[0].clone(), log.entries[2].clone()]);
        // Nothing but the blocks changed, and what stands there has the refs.
        let payloads = log.payloads();
        for (sent, stored, block, offloaded) in
            [(&asked, &payloads[0], large_block, first), (&seen, &payloads[2], wide_block, second)]
        {
            let (before, after) = sent.split_once(&block.to_string()).unwrap();
            let now = stored.strip_prefix(before).unwrap().strip_suffix(after).unwrap();
            let now: Value = serde_json::from_str(now).unwrap();
            let note = match now.get("inlineData") {
                Some(inline) => {
                    String::from_utf8(STANDARD.decode(inline["data"].as_str().unwrap()).unwrap()).unwrap()
                }
                None => now["text"].as_str().unwrap().to_owned(),
            };
            assert!(note.contains(&offloaded.r#ref) && note.contains("image/png"), "{note}");
        }
        assert_eq!(payloads[1], call(format));
        let window = service.window(&name).await;
        // In what a tool gave Chat Completions takes text alone.
        let served = if format == OpenaiChat { 2 } else { 3 };
        assert_eq!(window.payloads()[..served], payloads[..served]);
        assert!(format == GeminiContents || window.payloads()[2].contains(&second.r#ref));
        assert!(log.entries[0].tokens < 3_500, "{}", log.entries[0].tokens);
        service = service.restart().await;
        for (offloaded, bytes) in [(first, &large), (second, &wide)] {
            assert!(calls::whole(&service, &offloaded.r#ref).await == *bytes);
            let output = calls::get(&service, &offloaded.r#ref).await.unwrap();
            assert_eq!((output.content_type.as_str(), output.bytes), ("image/png", bytes.len() as u64));
        }
    }
    service.stop().await;
    let report = backend.fsck().await;
    assert_eq!((report.outputs, report.findings), (10, vec![]));
}

async fn a_list_may_have_a_picture_or_the_text_in_its_place(backend: Backend) {
    let service = Service::start(&backend).await;
    for (i, format) in [OpenaiChat, AnthropicMessages, GeminiContents].into_iter().enumerate() {
        let name = service.create(&format!("s{i}"), limited(format)).await.name;
        let seen = result(format, &[image(format, &png(9, 7_000))]);
        let list = vec![question(format, &[text(format, "look")]), call(format), seen];
        let first = service.persist(snapshot(&name, &list)).await.unwrap();
        assert_eq!((first.version, first.offloaded_results.len()), (1, 1));
        let stored = service.read(&name).await.payloads();
        assert_ne!(stored[2], list[2]);
        for same in [&list, &stored] {
            let nothing_new = service.persist(snapshot(&name, same)).await.unwrap();
            assert_eq!((nothing_new.version, nothing_new.receipt), (1, first.receipt.clone()), "{format:?}");
        }
        // A turn with the text is another turn, and the text stays.
        let again = service.append(&name, &[&stored[0], &stored[1], &stored[2]]).await;
        assert_eq!((again.last_seq, again.offloaded_results), (6, vec![]));
        assert_eq!(calls::list(&service, &name).await.len(), 1);
    }
}

async fn a_result_that_is_too_long_with_a_picture_that_is_too_large_gives_way_twice(backend: Backend) {
    let service = Service::start(&backend).await;
    for (i, format) in
        [OpenaiChat, OpenaiResponses, AnthropicMessages, BedrockConverse].into_iter().enumerate()
    {
        let name = service.create(&format!("s{i}"), limited(format)).await.name;
        let (picture, long) = (png(9, 7_000), "line\n".repeat(40_000));
        // Both as one text that is to blame, and as many that are not.
        let short: Vec<_> = long
            .as_bytes()
            .chunks(500)
            .map(|part| text(format, std::str::from_utf8(part).unwrap()))
            .collect();
        for texts in [vec![text(format, &long)], short] {
            let blocks =
                [vec![image(format, &picture)], texts.clone(), vec![image(format, &png(9, 99))]].concat();
            let answer = service.append(&name, &[&call(format), &result(format, &blocks)]).await;
            let [media, texts_of] = &answer.offloaded_results[..] else { panic!("{format:?} {answer:?}") };
            assert!(calls::whole(&service, &media.r#ref).await == picture);
            let kept = String::from_utf8(calls::whole(&service, &texts_of.r#ref).await).unwrap();
            if texts.len() == 1 {
                assert!(kept == long);
            } else {
                let kept: Value = serde_json::from_str(&kept).unwrap();
                assert_eq!(kept.as_array().unwrap()[1..=texts.len()], texts[..]);
                assert!(kept[0]["text"].as_str().unwrap().contains(&media.r#ref));
            }
            let stored = String::from_utf8(answer.changed_entries[0].payload.to_vec()).unwrap();
            assert!(stored.contains(&texts_of.r#ref) && stored.len() < 80_200, "{}", stored.len());
            assert!(stored.contains(&STANDARD.encode(png(9, 99))));
        }
    }
}

async fn a_model_that_takes_no_pictures_is_sent_none(backend: Backend) {
    let service = Service::start(&backend).await;
    let of_model = |images| {
        let limits = pb::MediaLimits { images, ..Default::default() };
        let profile = pb::ModelProfile {
            model: "o3-mini".to_owned(),
            media_limits: Some(limits),
            ..Default::default()
        };
        pb::Session { profile: Some(profile), ..of_format(OpenaiChat) }
    };
    let asked = question(OpenaiChat, &[text(OpenaiChat, "look"), image(OpenaiChat, &png(9, 90))]);
    // What is said of it is believed before the catalogue is.
    service.create("blind", of_model(None)).await;
    service.create("seeing", of_model(Some(true))).await;
    let answer = service.append("sessions/blind", &[&asked]).await;
    let [offloaded] = &answer.offloaded_results[..] else { panic!("{answer:?}") };
    assert!(calls::whole(&service, &offloaded.r#ref).await == png(9, 90));
    let window = service.window("sessions/blind").await.payloads().concat();
    assert!(window.contains("the model takes no pictures") && window.contains(&offloaded.r#ref), "{window}");
    assert!(!window.contains("image_url\":{\"url\":\"data:image"), "{window}");
    let answer = service.append("sessions/seeing", &[&asked]).await;
    assert_eq!(answer.offloaded_results, []);
    assert_eq!(service.window("sessions/seeing").await.payloads(), [asked]);
}

async fn media_stay_whole_if_the_request_says_so(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", limited(AnthropicMessages)).await;
    let payloads = [question(AnthropicMessages, &[image(AnthropicMessages, &png(9, 7_000))])];
    let whole = pb::PersistTranscriptRequest { keep_tool_results: true, ..append(SESSION, "r1", &payloads) };
    let answer = service.persist(whole).await.unwrap();
    assert_eq!((answer.changed_entries, answer.offloaded_results), (vec![], vec![]));
    assert_eq!(service.read(SESSION).await.payloads(), payloads);
    assert_eq!(calls::list(&service, SESSION).await, []);
}
