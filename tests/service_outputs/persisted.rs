//! Tool results that are too long and come with a persist.

use crate::backends::{Backend, on_all_backends, on_shared_backend};
use crate::calls::{self, offload, stored};
use crate::service::{SESSION, Service, append, fresh_id, message, of_format, snapshot};
use crate::{Outcome, numbered_lines};
use pb::WireFormat::{
    self, AnthropicMessages, BedrockConverse, GeminiContents, Opaque, OpenaiChat, OpenaiResponses,
};
use serde_json::{Value, json};
use tonic::Code;
use turnkeep::rpc::pb;
use turnkeep::store::faulty::Fault;

on_all_backends!(
    a_result_that_is_too_long_gives_way_to_its_preview_in_every_format,
    an_answer_is_given_again_as_it_was,
    a_list_may_have_either_form_of_an_entry,
    what_was_offloaded_or_is_short_enough_stays,
    results_stay_whole_if_the_request_says_so,
    a_session_says_how_long_previews_are_and_what_they_show,
    results_are_held_while_the_object_store_is_down,
    forks_keep_the_outputs_of_turns,
    a_large_turn_brings_its_outputs_too,
    an_output_has_the_tool_of_the_call_that_its_result_answers,
);
on_shared_backend!(a_call_that_another_replica_took_names_the_tool_too);

fn call(format: WireFormat) -> Value {
    match format {
        OpenaiResponses => {
            json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "grep", "arguments": "{}"})
        }
        AnthropicMessages => {
            json!({"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "grep", "input": {}}]})
        }
        GeminiContents => json!({"role": "model", "parts": [{"functionCall": {"name": "grep", "args": {}}}]}),
        BedrockConverse => {
            json!({"role": "assistant", "content": [{"toolUse": {"toolUseId": "call_1", "name": "grep", "input": {}}}]})
        }
        _ => json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": "{}"}}]}),
    }
}

fn question(format: WireFormat) -> Value {
    match format {
        GeminiContents => json!({"role": "user", "parts": [{"text": "find it"}]}),
        BedrockConverse => json!({"role": "user", "content": [{"text": "find it"}]}),
        _ => json!({"role": "user", "content": "find it"}),
    }
}

/// Messages with a result, as they stand around the JSON string of its text.
fn results(format: WireFormat) -> Vec<[&'static str; 2]> {
    match format {
        OpenaiResponses => vec![
            [r#"{"type":"function_call_output", "call_id":"call_1","output":"#, "}"],
            [
                r#"{"type":"function_call_output","call_id":"call_1","output":[{"type":"input_text","text":"#,
                r#"},{"type":"input_image","image_url":"data:image/png;base64,iVBORw0KGgo="}]}"#,
            ],
        ],
        AnthropicMessages => vec![
            [
                r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":"#,
                r#","is_error":false}]}"#,
            ],
            [
                r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"call_1","content":[{"type":"text","text":"#,
                r#"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}, {"type":"text","text":"go on"}]}"#,
            ],
        ],
        GeminiContents => vec![[
            r#"{"role":"user","parts":[{"functionResponse":{"name":"grep","response":{"output" : "#,
            r#", "exit_code": 1.0}}}]}"#,
        ]],
        BedrockConverse => vec![
            [
                r#"{"role":"user","content":[{"toolResult":{"toolUseId":"call_1","content":[{"text":"#,
                r#"},{"image":{"format":"png","source":{"bytes":"iVBORw0KGgo="}}}],"status":"success"}}]}"#,
            ],
            [
                r#"{"role":"user","content":[{"toolResult":{"toolUseId":"call_1","content":[{"json":{"out":"#,
                r#","code":0}}]}}]}"#,
            ],
        ],
        _ => vec![
            [r#"{"role":"tool","tool_call_id":"call_1", "content":"#, r#","unknown":1e400}"#],
            [
                r#"{"role":"tool","tool_call_id":"call_1","content":[{"type":"text","text":"ok"},{"type":"text","text":"#,
                "}]}",
            ],
        ],
    }
}

fn output_text() -> String {
    let text = String::from_utf8(numbered_lines(8_000)).unwrap();
    text + "漢字 \u{1b}[1mbold\u{1b}[0m \0 end"
}

fn result(format: WireFormat) -> (String, [&'static str; 2]) {
    let around = results(format)[0];
    ([around[0], &Value::from(output_text()).to_string(), around[1]].concat(), around)
}

async fn a_result_that_is_too_long_gives_way_to_its_preview_in_every_format(backend: Backend) {
    let mut service = Service::start(&backend).await;
    let (text, mut sessions) = (output_text(), 0_usize);
    for format in [OpenaiChat, OpenaiResponses, AnthropicMessages, GeminiContents, BedrockConverse] {
        for around in results(format) {
            sessions += 1;
            let name = service.create(&format!("s{sessions}"), of_format(format)).await.name;
            let [question, call] = [question(format), call(format)].map(|message| message.to_string());
            let sent = [around[0], &Value::from(text.as_str()).to_string(), around[1]].concat();
            let answer = service.append(&name, &[&question, &call, &sent]).await;
            let [offloaded] = &answer.offloaded_results[..] else { panic!("{answer:?}") };
            let output = calls::list(&service, &name).await.pop().unwrap();
            let id = if format == GeminiContents { "" } else { "call_1" };
            let expected = pb::OffloadedToolResult {
                seq: 3,
                r#ref: output.r#ref.clone(),
                tool_call_id: id.to_owned(),
                bytes: text.len() as u64,
            };
            assert_eq!(*offloaded, expected);
            assert_eq!(output.tool_name, "grep");
            assert_eq!((output.content_type.as_str(), output.lines), ("text/plain; charset=utf-8", 8_001));
            // The log has the preview and otherwise each byte that came.
            let log = service.read(&name).await;
            assert_eq!(answer.changed_entries, log.entries[2..]);
            let payloads = log.payloads();
            assert_eq!(payloads[..2], [question, call]);
            let token = payloads[2].strip_prefix(around[0]).unwrap().strip_suffix(around[1]).unwrap();
            let preview: String = serde_json::from_str(token).unwrap();
            assert!(preview.starts_with("line 1 of 8000") && preview.ends_with(" end"), "{preview}");
            assert!(preview.contains(&output.r#ref), "{preview}");
            // The result alone counts, without its picture.
            let counted = ["iVBORw0KGgo=", r#", {"type":"text","text":"go on"}"#]
                .iter()
                .fold(payloads[2].clone(), |payload, other| payload.replace(other, ""));
            assert!((70_000..=80_000).contains(&counted.chars().count()), "{}", counted.chars().count());
            assert_eq!(service.window(&name).await.items[2].payload, log.entries[2].payload);
            assert!(log.entries[2].tokens < 50_000, "{}", log.entries[2].tokens);
            service = service.restart().await;
            assert!(calls::whole(&service, &output.r#ref).await == text.as_bytes());
            assert_eq!(service.read(&name).await, log);
        }
    }
    service.stop().await;
    let report = backend.fsck().await;
    assert_eq!((report.outputs, report.findings), (sessions as u64, vec![]));
}

async fn an_answer_is_given_again_as_it_was(backend: Backend) {
    let mut service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let (sent, _) = result(OpenaiChat);
    let request = append(SESSION, "r1", &[call(OpenaiChat).to_string(), sent]);
    let first = service.persist(request.clone()).await.unwrap();
    assert_eq!((first.changed_entries.len(), first.offloaded_results.len()), (1, 1));
    service.append(SESSION, &["{}"]).await;
    assert_eq!(service.persist(request.clone()).await.unwrap(), first);
    service.seal().await;
    service = service.restart().await;
    assert_eq!(service.persist(request.clone()).await.unwrap(), first);
    assert_eq!(calls::list(&service, SESSION).await.len(), 1);
    assert_eq!(service.read(SESSION).await.entries.len(), 3);
    // The form in which it was stored is another request.
    let entries = vec![message(call(OpenaiChat).to_string()), message(&first.changed_entries[0].payload)];
    let input = pb::persist_transcript_request::Append { entries };
    let other = pb::PersistTranscriptRequest {
        input: Some(pb::persist_transcript_request::Input::Append(input)),
        ..request
    };
    let refusal = service.persist(other).await.unwrap_err();
    assert_eq!(refusal.kind(), (Code::InvalidArgument, "REQUEST_ID_REUSED"));
}

async fn a_list_may_have_either_form_of_an_entry(backend: Backend) {
    let service = Service::start(&backend).await;
    for (i, format) in [OpenaiChat, AnthropicMessages, GeminiContents].into_iter().enumerate() {
        let name = service.create(&format!("s{i}"), of_format(format)).await.name;
        let (sent, _) = result(format);
        let [question, call] = [question(format), call(format)].map(|message| message.to_string());
        let list = vec![question.clone(), call.clone(), sent];
        let first = service.persist(snapshot(&name, &list)).await.unwrap();
        assert_eq!((first.version, first.offloaded_results.len()), (1, 1));
        let mut as_stored = list.clone();
        as_stored[2] = service.read(&name).await.payloads()[2].clone();
        for same in [&list, &as_stored] {
            let nothing_new = service.persist(snapshot(&name, same)).await.unwrap();
            assert_eq!((nothing_new.version, nothing_new.last_seq), (1, 3));
            assert_eq!(nothing_new.receipt, first.receipt);
        }
        // Both go on, and both contradict where they differ.
        let mut expected = as_stored.clone();
        for (n, known) in [&list, &as_stored].into_iter().enumerate() {
            expected.push(question.replace("find it", &format!("more {n}")));
            let longer = [&known[..], &expected[3..]].concat();
            let answer = service.persist(snapshot(&name, &longer)).await.unwrap();
            assert_eq!((answer.first_seq, answer.last_seq), (4 + n as u64, 4 + n as u64));
            assert_eq!(answer.offloaded_results, []);
            assert_eq!(service.read(&name).await.payloads(), expected);
            let mut other = longer.clone();
            other[3] = question.replace("find it", "something else");
            let refusal = service.persist(snapshot(&name, &other)).await.unwrap_err();
            assert_eq!(refusal.kind(), (Code::FailedPrecondition, "SNAPSHOT_CONTRADICTS_LOG"));
            assert_eq!(refusal.metadata("index"), "3");
        }
        // A list that began as the window.
        let window = service.window(&name).await;
        let mut as_sent = window.payloads();
        for payload in as_sent.iter_mut().filter(|payload| **payload == as_stored[2]) {
            payload.clone_from(&list[2]);
        }
        for known in [as_sent, window.payloads()] {
            let longer = [known, vec![question.replace("find it", "from the window")]].concat();
            let mut request = snapshot(&name, &longer);
            if let Some(pb::persist_transcript_request::Input::Snapshot(snapshot)) = &mut request.input {
                snapshot.window_id.clone_from(&window.header.window_id);
            }
            let answer = service.persist(request).await.unwrap();
            assert_eq!(answer.last_seq, 6, "{format:?}");
        }
        // A rewind with the stored form is not taken for another log later.
        let mut rewinding =
            snapshot(&name, &[&as_stored[..], &[question.replace("find it", "anew")]].concat());
        if let Some(pb::persist_transcript_request::Input::Snapshot(snapshot)) = &mut rewinding.input {
            snapshot.allow_rewind = true;
        }
        let rewound = service.persist(rewinding).await.unwrap();
        assert_eq!((rewound.rewound_to_version, rewound.last_seq), (Some(1), 4));
        let longer = [&list[..], &[question.replace("find it", "anew")]].concat();
        assert_eq!(service.persist(snapshot(&name, &longer)).await.unwrap().version, rewound.version);
        assert_eq!(calls::list(&service, &name).await.len(), 1);
    }
}

async fn what_was_offloaded_or_is_short_enough_stays(backend: Backend) {
    let service = Service::start(&backend).await;
    for (i, format) in [OpenaiChat, OpenaiResponses, AnthropicMessages, GeminiContents, BedrockConverse]
        .into_iter()
        .enumerate()
    {
        let name = service.create(&format!("s{i}"), of_format(format)).await.name;
        let offloaded = stored(offload(&service, &name, output_text().as_bytes()).await.unwrap());
        let mut inline = "漢\"\n".repeat(7_940);
        while let Outcome::Inline(_) =
            offload(&service, &name, (inline.clone() + "\"").as_bytes()).await.unwrap()
        {
            inline.push('"');
        }
        let known = calls::list(&service, &name).await.len();
        let mut sent = vec![call(format).to_string()];
        for text in [offloaded.preview, inline] {
            let token = Value::from(text).to_string();
            sent.extend(results(format).iter().map(|[before, after]| format!("{before}{token}{after}")));
        }
        let answer = service.append(&name, &sent).await;
        assert_eq!((answer.changed_entries, answer.offloaded_results), (vec![], vec![]), "{format:?}");
        assert_eq!(service.read(&name).await.payloads(), sent);
        assert_eq!(calls::list(&service, &name).await.len(), known);
    }
    // Nothing is known of what is not understood, and records are not touched.
    let name = service.create("opaque", of_format(Opaque)).await.name;
    let (sent, _) = result(OpenaiChat);
    assert_eq!(service.append(&name, &[&sent]).await.offloaded_results, []);
    service.create("meta", of_format(OpenaiChat)).await;
    let mut record = append("sessions/meta", "r1", &[&sent]);
    if let Some(pb::persist_transcript_request::Input::Append(append)) = &mut record.input {
        append.entries[0].kind = pb::EntryKind::Meta.into();
    }
    assert_eq!(service.persist(record).await.unwrap().offloaded_results, []);
    assert_eq!(service.read("sessions/meta").await.payloads(), [sent]);
}

async fn results_stay_whole_if_the_request_says_so(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let (sent, _) = result(OpenaiChat);
    let payloads = [call(OpenaiChat).to_string(), sent];
    let request = append(SESSION, "r1", &payloads);
    let whole = pb::PersistTranscriptRequest { keep_tool_results: true, ..request.clone() };
    let answer = service.persist(whole.clone()).await.unwrap();
    assert_eq!((&answer.changed_entries, &answer.offloaded_results), (&vec![], &vec![]));
    assert_eq!(service.read(SESSION).await.payloads(), payloads);
    assert_eq!(service.persist(whole).await.unwrap(), answer);
    assert_eq!(service.persist(request).await.unwrap_err().reason, "REQUEST_ID_REUSED");
    // A list with it is the same list.
    let nothing_new = service.persist(snapshot(SESSION, &payloads)).await.unwrap();
    assert_eq!((nothing_new.version, nothing_new.offloaded_results), (1, vec![]));
    assert_eq!(calls::list(&service, SESSION).await, []);
}

async fn a_session_says_how_long_previews_are_and_what_they_show(backend: Backend) {
    let service = Service::start(&backend).await;
    let limit = pb::ToolResultLimit {
        preview_length: Some(1_000),
        head_percent: Some(100),
        ..pb::ToolResultLimit::default()
    };
    let profile = pb::ModelProfile { tool_result_limit: Some(limit), ..Default::default() };
    service.create("s", pb::Session { profile: Some(profile), ..of_format(OpenaiChat) }).await;
    let ((sent, _), text) = (result(OpenaiChat), output_text());
    let answer = service.append(SESSION, &[call(OpenaiChat).to_string(), sent]).await;
    let [changed] = &answer.changed_entries[..] else { panic!("{answer:?}") };
    let content = turnkeep::format::json::Value::of(&changed.payload).member("content").unwrap();
    let in_turn = content.text().unwrap().into_owned();
    let streamed = stored(offload(&service, SESSION, text.as_bytes()).await.unwrap()).preview;
    for preview in [in_turn, streamed] {
        let characters = preview.chars().count();
        assert!((800..=1_000).contains(&characters), "{characters} of {preview}");
        // The beginning alone, and then the marker.
        assert!(preview.starts_with(text.lines().next().unwrap()), "{preview}");
        assert!(!preview.contains(text.lines().next_back().unwrap()), "{preview}");
    }
}

async fn results_are_held_while_the_object_store_is_down(backend: Backend) {
    let (service, faulty) = Service::start_faulty(&backend, |_| ()).await;
    service.create("s", of_format(OpenaiChat)).await;
    let ((sent, _), text) = (result(OpenaiChat), output_text());
    faulty.set(Fault::Down);
    let payloads = [call(OpenaiChat).to_string(), sent];
    let request = append(SESSION, "r1", &payloads);
    let answer = service.persist(request.clone()).await.unwrap();
    let [offloaded] = &answer.offloaded_results[..] else { panic!("{answer:?}") };
    let [changed] = &answer.changed_entries[..] else { panic!("{answer:?}") };
    assert!(String::from_utf8_lossy(&changed.payload).contains(&offloaded.r#ref), "{changed:?}");
    assert_eq!(service.read(SESSION).await.payloads()[1].as_bytes(), changed.payload);
    let streamed = stored(offload(&service, SESSION, text.as_bytes()).await.unwrap()).output.unwrap();
    let refs = [&offloaded.r#ref, &streamed.r#ref];
    let check = async |held: u64| {
        assert_eq!(service.engine().move_held_outputs().await.ok(), (held == 0).then_some(2));
        assert_eq!(service.persist(request.clone()).await.unwrap(), answer);
        for name in refs {
            assert!(calls::whole(&service, name).await == text.as_bytes());
            let lines = pb::ReadToolOutputRequest { name: name.clone(), ..Default::default() };
            assert!(!calls::read(&service, lines).await.unwrap().bytes.is_empty());
        }
        let listed = calls::list(&service, SESSION).await;
        assert_eq!(listed.len(), 2);
        assert!(refs.iter().all(|name| listed.iter().any(|output| output.r#ref == **name)), "{listed:?}");
        let charged = service.get(SESSION).await.stored_bytes.unwrap();
        let outputs: u64 = listed.iter().map(|output| output.stored_bytes).sum();
        assert!(charged > outputs, "{charged} of which {outputs} are outputs");
        (listed, charged)
    };
    let while_down = check(2).await;
    assert_eq!(backend.blob_keys().await.len(), 0);
    faulty.set(Fault::None);
    assert_eq!(check(0).await, while_down);
    assert_eq!(backend.blob_keys().await.len(), 2);
}

async fn forks_keep_the_outputs_of_turns(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let (sent, _) = result(OpenaiChat);
    service.append(SESSION, &[question(OpenaiChat).to_string(), call(OpenaiChat).to_string()]).await;
    let answer = service.append(SESSION, &[&sent]).await;
    let fork = |id: &str, version| pb::ForkSessionRequest {
        name: SESSION.to_owned(),
        version: Some(version),
        session_id: id.to_owned(),
        request_id: fresh_id(),
        ..Default::default()
    };
    let before = service.fork(fork("before", 1)).await.unwrap().name;
    let after = service.fork(fork("after", 2)).await.unwrap().name;
    assert_eq!(calls::list(&service, &before).await, []);
    assert_eq!(calls::list(&service, &after).await.len(), 1);
    // The fork's list has the ref of its source.
    let log = service.read(&after).await.payloads();
    assert!(log[2].contains(&answer.offloaded_results[0].r#ref));
    assert_eq!(service.persist(snapshot(&after, &log)).await.unwrap().last_seq, 3);
    let list = [&log[..2], &[sent]].concat();
    assert_eq!(service.persist(snapshot(&after, &list)).await.unwrap().last_seq, 3);
    // A rewound turn takes its output along.
    service.rewind_to(SESSION, 1).await;
    assert_eq!(calls::list(&service, SESSION).await.len(), 1);
    service.delete(SESSION, false).await.unwrap();
    let output = calls::list(&service, &after).await.pop().unwrap();
    assert!(calls::whole(&service, &output.r#ref).await == output_text().as_bytes());
}

async fn a_large_turn_brings_its_outputs_too(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    // Pictures that do not compress make the turn go to the object store first.
    let noise: String = (0..90_000).map(|_| fresh_id()).collect();
    let entries = [
        json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": noise}}]}).to_string(),
        call(OpenaiChat).to_string(),
        result(OpenaiChat).0,
        call(OpenaiChat).to_string(),
        result(OpenaiChat).0,
    ];
    let answer = service.append(SESSION, &entries).await;
    assert_eq!(backend.rows().await.segments, 1);
    let seqs: Vec<_> = answer.offloaded_results.iter().map(|offloaded| offloaded.seq).collect();
    assert_eq!(seqs, [3, 5]);
    let log = service.read(SESSION).await.entries;
    assert_eq!(answer.changed_entries, [log[2].clone(), log[4].clone()]);
    for offloaded in &answer.offloaded_results {
        assert!(calls::whole(&service, &offloaded.r#ref).await == output_text().as_bytes());
    }
    service.stop().await;
    let report = backend.fsck().await;
    assert_eq!((report.outputs, report.findings), (2, vec![]));
}

/// The calls `call_1` of `grep` and `call_2` of `make`.
fn two_calls() -> String {
    let call = |id: &str, name: &str| json!({"type": "tool_use", "id": id, "name": name, "input": {}});
    json!({"role": "assistant", "content": [call("call_1", "grep"), call("call_2", "make")]}).to_string()
}

fn answers(ids: &[&str]) -> String {
    let result = |id: &&str| json!({"type": "tool_result", "tool_use_id": id, "content": output_text()});
    let results: Vec<_> = ids.iter().map(result).collect();
    json!({"role": "user", "content": results}).to_string()
}

/// Call and tool of each output, in the order of the calls.
async fn tools(service: &Service) -> Vec<(String, String)> {
    let outputs = calls::list(service, SESSION).await.into_iter();
    let mut tools: Vec<_> = outputs.map(|output| (output.tool_call_id, output.tool_name)).collect();
    tools.sort();
    tools
}

async fn an_output_has_the_tool_of_the_call_that_its_result_answers(backend: Backend) {
    let mut service = Service::start(&backend).await;
    service.create("s", of_format(AnthropicMessages)).await;
    let of = |id: &str, name: &str| (id.to_owned(), name.to_owned());
    let [grep, make] = [of("call_1", "grep"), of("call_2", "make")];
    // In one turn, in any order; nobody called the third.
    service.append(SESSION, &[&two_calls(), &answers(&["call_2", "call_1", "call_3"])]).await;
    assert_eq!(tools(&service).await, [grep.clone(), make.clone(), of("call_3", "")]);
    // In turns of their own, the second after the conversation went on.
    service.append(SESSION, &[two_calls()]).await;
    service = service.restart().await;
    service.append(SESSION, &[answers(&["call_1"])]).await;
    service.append(SESSION, &[question(AnthropicMessages).to_string(), two_calls()]).await;
    service.append(SESSION, &[question(AnthropicMessages).to_string()]).await;
    service.append(SESSION, &[answers(&["call_2"])]).await;
    let expected = [grep.clone(), grep, make.clone(), make, of("call_3", "")];
    assert_eq!(tools(&service).await, expected);
}

async fn a_call_that_another_replica_took_names_the_tool_too(backend: Backend) {
    let (one, other) = (Service::start(&backend).await, Service::start(&backend).await);
    one.create("s", of_format(AnthropicMessages)).await;
    one.append(SESSION, &[question(AnthropicMessages).to_string()]).await;
    other.append(SESSION, &[two_calls()]).await;
    let answer = one.append(SESSION, &[answers(&["call_1"])]).await;
    assert_eq!((answer.version, answer.offloaded_results.len()), (3, 1));
    assert_eq!(tools(&one).await, [("call_1".to_owned(), "grep".to_owned())]);
}
