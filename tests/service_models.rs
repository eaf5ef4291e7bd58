//! What the service says of models and their providers.
#![cfg(test)]
#![cfg(feature = "server")]

#[path = "support/backends.rs"]
mod backends;
#[path = "support/service.rs"]
mod service;

use backends::{Backend, on_embedded_backend};
use pb::{FailureAction, FailureClass};
use service::{Refusal, Service};
use tonic::Code;
use turnkeep::rpc::pb;

on_embedded_backend!(a_failure_is_classified_by_whatever_is_known_of_it);

async fn a_failure_is_classified_by_whatever_is_known_of_it(backend: Backend) {
    let service = Service::start(&backend).await;
    let classify = async |request: pb::ClassifyFailureRequest| {
        let mut models = service.client.models.clone();
        models.classify_failure(request).await.map(tonic::Response::into_inner).map_err(Refusal::from)
    };
    let base = pb::ClassifyFailureRequest::default;
    let text = |text: &str| text.to_owned();
    let overflow = r#"{"error":{"message":"prompt is too long: 207547 tokens > 200000 maximum"}}"#;
    let lost = || pb::ClassifyFailureRequest { connection_lost: true, request_tokens: 100_000, ..base() };
    let gemini = pb::WireFormat::GeminiContents.into();
    let quota = text("You exceeded your current quota, please check your plan");
    let table = [
        (
            pb::ClassifyFailureRequest { status: 400, message: text(overflow), ..base() },
            (FailureClass::ContextOverflow, FailureAction::CompactAndRetry),
        ),
        (
            pb::ClassifyFailureRequest { status: 200, code: text("refusal"), ..base() },
            (FailureClass::ContentPolicy, FailureAction::GiveUp),
        ),
        (
            pb::ClassifyFailureRequest { status: 529, ..base() },
            (FailureClass::Overloaded, FailureAction::BackOff),
        ),
        (lost(), (FailureClass::Network, FailureAction::BackOff)),
        (
            pb::ClassifyFailureRequest { context_window_tokens: 128_000, ..lost() },
            (FailureClass::ContextOverflow, FailureAction::CompactAndRetry),
        ),
        // The same window, by the model's name.
        (
            pb::ClassifyFailureRequest { model: text("openai/gpt-4o"), ..lost() },
            (FailureClass::ContextOverflow, FailureAction::CompactAndRetry),
        ),
        (
            pb::ClassifyFailureRequest { status: 429, message: quota.clone(), ..base() },
            (FailureClass::Quota, FailureAction::GiveUp),
        ),
        (
            pb::ClassifyFailureRequest { format: gemini, status: 429, message: quota, ..base() },
            (FailureClass::RateLimit, FailureAction::BackOff),
        ),
        (base(), (FailureClass::Unknown, FailureAction::BackOff)),
    ];
    for (request, expected) in table {
        let answer = classify(request.clone()).await.unwrap();
        assert_eq!((answer.failure_class(), answer.action()), expected, "{request:?}");
    }
    let refusal = classify(pb::ClassifyFailureRequest { status: 600, ..base() }).await.unwrap_err();
    assert_eq!(
        (refusal.kind(), refusal.metadata("field")),
        ((Code::InvalidArgument, "INVALID_FIELD"), "status")
    );
}
