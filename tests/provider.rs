//! Calls of a model's provider over HTTP.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/llm.rs"]
mod llm;

use llm::{Llm, RealModel, Step, anthropic_answer, openai_answer};
use serde_json::json;
use std::time::Duration;
use turnkeep::clock::{Deadline, Stopwatch};
use turnkeep::model::Usage;
use turnkeep::provider::failure::FailureClass;
use turnkeep::provider::{
    Api, Completion, CompletionRequest, InvalidOptions, LlmClient, LlmOptions, ProviderFailure, StopReason,
    Summarizer,
};

const KEY: &str = "sk-hunter2";

fn options(api: Api, llm: &Llm) -> LlmOptions {
    let endpoint = match api {
        Api::Anthropic => llm.url.clone(),
        Api::Openai => format!("{}/v1", llm.url),
    };
    LlmOptions {
        api,
        endpoint,
        model: "small-1".to_owned(),
        key: Some(KEY.into()),
        key_header: None,
        connect_timeout: Duration::from_secs(5),
        attempt_timeout: Duration::from_mins(1),
    }
}

fn client(api: Api, llm: &Llm) -> LlmClient {
    LlmClient::new(options(api, llm)).unwrap()
}

fn request() -> CompletionRequest {
    CompletionRequest {
        system: "Be brief.".to_owned(),
        user: "Sum up: \"x\"".to_owned(),
        max_output_tokens: 500,
    }
}

async fn ask(client: &LlmClient, seconds: u64) -> Result<Completion, ProviderFailure> {
    client.complete(&request(), Deadline::after(Duration::from_secs(seconds))).await
}

/// The failure of a call with plenty of time, and how often the server was asked.
async fn failure(api: Api, step: Step) -> (ProviderFailure, usize) {
    let llm = Llm::start([step]).await;
    let failure = ask(&client(api, &llm), 60).await.unwrap_err();
    (failure, llm.received().len())
}

#[tokio::test]
async fn chat_completions_are_asked_and_read() {
    let llm = Llm::start([Step::ok(&openai_answer("In short.", "stop"))]).await;
    let completion = ask(&client(Api::Openai, &llm), 60).await.unwrap();
    let usage = Usage {
        model: "served-1".to_owned(),
        input_tokens: 70,
        output_tokens: 20,
        cache_read_tokens: 30,
        ..Usage::default()
    };
    let text = "In short.".to_owned();
    assert_eq!(completion, Completion { text, usage, stop_reason: StopReason::End, attempts: 1 });
    let [received] = llm.received().try_into().unwrap();
    assert_eq!((received.method.as_str(), received.path.as_str()), ("POST", "/v1/chat/completions"));
    assert_eq!(received.header("authorization"), Some("Bearer sk-hunter2"));
    assert_eq!(received.header("content-type"), Some("application/json"));
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Sum up: \"x\""},
    ]);
    assert_eq!(received.body, json!({"model": "small-1", "messages": messages, "max_tokens": 500}));
}

/// As Azure has it: the deployment in the path, a version behind it, the key in a header
/// of its own.
#[tokio::test]
async fn a_key_may_stand_in_another_header_and_a_version_in_the_query() {
    let llm =
        Llm::start([Step::ok(&openai_answer("a", "stop")), Step::ok(&anthropic_answer("b", "end_turn"))])
            .await;
    let asked = async |api, path: &str| {
        let endpoint = format!("{}{path}", llm.url);
        let options = LlmOptions { endpoint, key_header: Some("api-key".to_owned()), ..options(api, &llm) };
        ask(&LlmClient::new(options).unwrap(), 60).await.unwrap().text
    };
    assert_eq!(asked(Api::Openai, "/openai/deployments/d?api-version=2024-10-21").await, "a");
    assert_eq!(asked(Api::Anthropic, "/x/?api-version=1").await, "b");
    let received = llm.received();
    let paths = received.iter().map(|received| received.path.as_str());
    let expected =
        ["/openai/deployments/d/chat/completions?api-version=2024-10-21", "/x/v1/messages?api-version=1"];
    assert_eq!(paths.collect::<Vec<_>>(), expected);
    for request in &received {
        let keys = ["api-key", "authorization", "x-api-key"].map(|name| request.header(name));
        assert_eq!(keys, [Some(KEY), None, None]);
    }
}

#[tokio::test]
async fn messages_are_asked_and_read() {
    let llm = Llm::start([Step::ok(&anthropic_answer("In short.", "max_tokens"))]).await;
    let completion = ask(&client(Api::Anthropic, &llm), 60).await.unwrap();
    let usage = Usage {
        model: "served-1".to_owned(),
        input_tokens: 70,
        output_tokens: 20,
        cache_read_tokens: 30,
        cache_write_tokens: 5,
        ..Usage::default()
    };
    let text = "In short.".to_owned();
    assert_eq!(completion, Completion { text, usage, stop_reason: StopReason::MaxTokens, attempts: 1 });
    let [received] = llm.received().try_into().unwrap();
    assert_eq!((received.method.as_str(), received.path.as_str()), ("POST", "/v1/messages"));
    assert_eq!(received.header("x-api-key"), Some(KEY));
    assert_eq!(received.header("anthropic-version"), Some("2023-06-01"));
    let body = json!({
        "model": "small-1",
        "max_tokens": 500,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "Sum up: \"x\""}],
    });
    assert_eq!(received.body, body);
}

#[tokio::test]
async fn a_server_that_wants_the_new_name_of_the_limit_gets_it_from_then_on() {
    let problem = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";
    let refusal = Step::status(400, &json!({"error": {"message": problem, "code": "unsupported_parameter"}}));
    let llm = Llm::start([refusal, Step::ok(&openai_answer("a", "stop"))]).await;
    let client = client(Api::Openai, &llm);
    assert_eq!(ask(&client, 60).await.unwrap().text, "a");
    assert_eq!(ask(&client, 60).await.unwrap().text, "a");
    let limits: Vec<_> = llm
        .received()
        .iter()
        .map(|received| {
            (received.body["max_tokens"].as_u64(), received.body["max_completion_tokens"].as_u64())
        })
        .collect();
    assert_eq!(limits, [(Some(500), None), (None, Some(500)), (None, Some(500))]);
}

#[tokio::test]
async fn what_may_pass_is_tried_again() {
    let wait = |header, pause: &str| Step::Answer(429, vec![(header, pause.to_owned())], "{}".to_owned());
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    for (api, answer) in
        [(Api::Anthropic, anthropic_answer("a", "end_turn")), (Api::Openai, openai_answer("a", "stop"))]
    {
        for first in [
            wait("retry-after", "0"),
            Step::status(500, &json!({"error": {"message": "Internal server error"}})),
            Step::status(529, &overloaded),
            Step::Reset,
            Step::ResetAmidBody,
        ] {
            let llm = Llm::start([first.clone(), Step::ok(&answer)]).await;
            let completion = ask(&client(api, &llm), 60).await.unwrap();
            assert_eq!((completion.text.as_str(), completion.attempts), ("a", 2), "{api:?} {first:?}");
            assert_eq!(llm.received().len(), 2);
        }
    }
    let llm = Llm::start([wait("retry-after", "1"), Step::ok(&openai_answer("a", "stop"))]).await;
    let waited = Stopwatch::start();
    ask(&client(Api::Openai, &llm), 60).await.unwrap();
    assert!(waited.elapsed() >= Duration::from_secs(1), "the provider asked for a second");
}

#[tokio::test]
async fn a_pause_past_the_deadline_is_not_waited_for() {
    let headers = vec![("retry-after", "3600".to_owned()), ("request-id", "req_1".to_owned())];
    let body = json!({"error": {"message": "Rate limit reached for requests"}});
    let llm = Llm::start([Step::Answer(429, headers, body.to_string())]).await;
    let waited = Stopwatch::start();
    let failure = ask(&client(Api::Openai, &llm), 30).await.unwrap_err();
    assert!(waited.elapsed() < Duration::from_secs(20));
    let expected = ProviderFailure {
        class: FailureClass::RateLimit,
        status: Some(429),
        message: body.to_string(),
        request_id: Some("req_1".to_owned()),
        retry_after: Some(Duration::from_hours(1)),
        usage: None,
        attempts: 1,
    };
    assert_eq!(failure, expected);
    assert_eq!(failure.to_string(), format!("RateLimit after 1 attempts, status 429, request req_1: {body}"));
}

#[tokio::test]
async fn what_stays_is_tried_four_times_and_what_cannot_pass_once() {
    let error = |message: &str| json!({"error": {"message": message}});
    let (failed, asked) = failure(Api::Openai, Step::status(503, &error("overloaded"))).await;
    assert_eq!((failed.class, failed.attempts, asked), (FailureClass::Overloaded, 4, 4));
    let table = [
        (Step::status(401, &error("invalid x-api-key")), FailureClass::Auth),
        (
            Step::status(400, &error("prompt is too long: 9 tokens > 8 maximum")),
            FailureClass::ContextOverflow,
        ),
        (Step::status(400, &error("Your credit balance is too low")), FailureClass::Quota),
        (Step::status(404, &error("no such model")), FailureClass::BadRequest),
        (
            Step::Answer(302, vec![("location", "http://127.0.0.1:1/".to_owned())], String::new()),
            FailureClass::BadRequest,
        ),
        (Step::Answer(200, vec![], "<html>Log in</html>".to_owned()), FailureClass::InvalidAnswer),
        (Step::Answer(200, vec![], String::new()), FailureClass::InvalidAnswer),
        (Step::ok(&json!({"content": 5, "choices": {}})), FailureClass::InvalidAnswer),
        (Step::ok(&json!({"content": [], "choices": []})), FailureClass::InvalidAnswer),
        (Step::Huge(5 << 20), FailureClass::InvalidAnswer),
        // A router that reports a failure with success.
        (Step::ok(&error("maximum context length is 8 tokens")), FailureClass::ContextOverflow),
    ];
    for (step, class) in table {
        for api in [Api::Anthropic, Api::Openai] {
            let (failed, asked) = failure(api, step.clone()).await;
            assert_eq!((failed.class, failed.attempts, asked), (class, 1, 1), "{api:?} {step:?}: {failed:?}");
        }
    }
}

#[tokio::test]
async fn an_answer_without_a_text_is_a_failure_that_says_why() {
    let refused = json!({
        "choices": [{"finish_reason": "stop", "message": {"content": null, "refusal": "I cannot."}}],
    });
    let table = [
        (Api::Openai, openai_answer("", "stop"), FailureClass::InvalidAnswer),
        (Api::Openai, openai_answer(" \n", "stop"), FailureClass::InvalidAnswer),
        // All of the output went into reasoning.
        (Api::Openai, openai_answer("", "length"), FailureClass::OutputLimit),
        (Api::Openai, openai_answer("half", "content_filter"), FailureClass::ContentPolicy),
        (Api::Openai, refused, FailureClass::ContentPolicy),
        (Api::Anthropic, anthropic_answer("", "end_turn"), FailureClass::InvalidAnswer),
        (Api::Anthropic, anthropic_answer("", "max_tokens"), FailureClass::OutputLimit),
        (Api::Anthropic, anthropic_answer("No.", "refusal"), FailureClass::ContentPolicy),
        (
            Api::Anthropic,
            anthropic_answer("a", "model_context_window_exceeded"),
            FailureClass::ContextOverflow,
        ),
    ];
    for (api, answer, class) in table {
        let (failed, asked) = failure(api, Step::ok(&answer)).await;
        assert_eq!((failed.class, failed.status, asked), (class, Some(200), 1), "{answer}: {failed:?}");
        // It costs what the provider has counted.
        let counted = answer.get("usage").map_or(0, |_| 20);
        assert_eq!(failed.usage.unwrap().output_tokens, counted, "{answer}");
    }
    let parts = json!({"choices": [{"finish_reason": "stop", "message": {
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }}]});
    let llm = Llm::start([Step::ok(&parts)]).await;
    let completion = ask(&client(Api::Openai, &llm), 60).await.unwrap();
    assert_eq!((completion.text.as_str(), completion.usage.model.as_str()), ("ab", "small-1"));
}

/// A failure within a deadline of a second, and a little.
async fn fails_in_time(options: LlmOptions) -> ProviderFailure {
    let client = LlmClient::new(options).unwrap();
    let waited = Stopwatch::start();
    let failure = ask(&client, 1).await.unwrap_err();
    assert!(waited.elapsed() < Duration::from_secs(10), "{failure:?} after {:?}", waited.elapsed());
    assert_eq!(failure.class, FailureClass::Network, "{failure:?}");
    failure
}

#[tokio::test]
async fn a_server_that_hangs_or_drips_is_given_up_at_the_deadline() {
    let body = openai_answer("In short.", "stop").to_string();
    for step in [Step::Hang, Step::Drip(body, Duration::from_millis(50))] {
        let llm = Llm::start([step]).await;
        let failure = fails_in_time(options(Api::Openai, &llm)).await;
        assert_eq!((failure.attempts, llm.received().len()), (1, 1));
        assert!(failure.message.starts_with("timed out"), "{failure}");
    }
}

#[tokio::test]
async fn an_attempt_that_hangs_leaves_time_for_another() {
    let llm = Llm::start([Step::Hang, Step::ok(&openai_answer("a", "stop"))]).await;
    let options = LlmOptions { attempt_timeout: Duration::from_millis(300), ..options(Api::Openai, &llm) };
    let completion = ask(&LlmClient::new(options).unwrap(), 60).await.unwrap();
    assert_eq!((completion.text.as_str(), completion.attempts), ("a", 2));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_failure_of_the_network() {
    let llm = Llm::start([]).await;
    // Nobody listens there: only root may.
    let options = LlmOptions { endpoint: "http://127.0.0.1:1/v1".to_owned(), ..options(Api::Openai, &llm) };
    let failure = fails_in_time(options.clone()).await;
    assert!(failure.message.to_lowercase().contains("refused"), "{failure}");
    // One that speaks no TLS.
    let endpoint = llm.url.replace("http:", "https:");
    fails_in_time(LlmOptions { endpoint, ..options }).await;
}

#[tokio::test]
async fn the_key_is_never_shown() {
    let body = json!({"error": {"message": format!("Incorrect API key provided: {KEY}.\nSee \u{1b}[31m")}});
    let headers = vec![("x-request-id", KEY.to_owned())];
    let llm =
        Llm::start([Step::Answer(401, headers, body["error"]["message"].as_str().unwrap().to_owned())]).await;
    for api in [Api::Anthropic, Api::Openai] {
        let client = client(api, &llm);
        let failure = ask(&client, 60).await.unwrap_err();
        let shown = format!("{failure} {failure:?} {client:?} {:?}", options(api, &llm));
        assert!(!shown.contains("hunter2"), "{shown}");
        assert_eq!(failure.message, "Incorrect API key provided: [key]. See  [31m");
    }
    let long = "é".repeat(5_000);
    let (failure, _) = failure(Api::Openai, Step::Answer(400, vec![], long)).await;
    assert_eq!(failure.message, "é".repeat(500));
}

#[tokio::test]
async fn options_that_cannot_work_are_refused() {
    let llm = Llm::start([]).await;
    let good = options(Api::Openai, &llm);
    for endpoint in ["", "api.openai.com/v1", "ftp://h/v1", "http://user:pass@h/v1"] {
        let wrong = LlmOptions { endpoint: endpoint.to_owned(), ..good.clone() };
        assert!(matches!(LlmClient::new(wrong), Err(InvalidOptions::Endpoint)), "{endpoint}");
    }
    let wrong = LlmOptions { key: Some("a\nb".into()), ..good };
    assert!(matches!(LlmClient::new(wrong), Err(InvalidOptions::Key)));
}

#[tokio::test]
async fn long_inputs_go_to_the_capable_model() {
    let llm = Llm::start([]).await;
    let named = |model: &str| {
        LlmClient::new(LlmOptions { model: model.to_owned(), ..options(Api::Openai, &llm) }).unwrap()
    };
    let mut summarizer = Summarizer { cheap: named("a"), capable: Some(named("b")), capable_over_tokens: 10 };
    assert_eq!([summarizer.model_for(10).model(), summarizer.model_for(11).model()], ["a", "b"]);
    summarizer.capable = None;
    assert_eq!(summarizer.model_for(11).model(), "a");
}

/// A small model, as `make test-llm` names it: what it says is not looked at.
#[tokio::test]
async fn a_real_model_answers() {
    let Some(RealModel { endpoint, model, key }) = RealModel::named() else { return };
    let options = LlmOptions {
        api: Api::Openai,
        endpoint,
        model,
        key,
        key_header: None,
        connect_timeout: Duration::from_secs(5),
        attempt_timeout: Duration::from_mins(5),
    };
    let request = CompletionRequest {
        system: "You sum up conversations in one sentence.".to_owned(),
        user: "Ana: the build fails. Ben: a test is flaky; I pinned its seed. Ana: it passes now.".to_owned(),
        max_output_tokens: 60,
    };
    let waited = Stopwatch::start();
    let completion = LlmClient::new(options)
        .unwrap()
        .complete(&request, Deadline::after(Duration::from_mins(5)))
        .await
        .unwrap();
    println!("{completion:?} in {:?}", waited.elapsed());
    assert!(completion.usage.input_tokens > 20, "{completion:?}");
    assert!((1..=60).contains(&completion.usage.output_tokens), "{completion:?}");
}
