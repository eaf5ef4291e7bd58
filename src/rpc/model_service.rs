//! `ModelService`.

use super::observe::observe;
use super::{convert, pb};
use crate::engine::Error;
use crate::provider::failure::{Action, FailureClass, FailureReport, classify};
use crate::tokens::catalogue;
use tonic::{Request, Response, Status};

/// `ModelService`, which needs no state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Models;

#[tonic::async_trait]
impl pb::model_service_server::ModelService for Models {
    async fn classify_failure(
        &self,
        request: Request<pb::ClassifyFailureRequest>,
    ) -> Result<Response<pb::ClassifyFailureResponse>, Status> {
        observe("ClassifyFailure", async { classify_failure(&request.into_inner()) }).await
    }
}

fn classify_failure(request: &pb::ClassifyFailureRequest) -> Result<pb::ClassifyFailureResponse, Error> {
    let status = match request.status {
        0 => None,
        status @ 100..=599 => u16::try_from(status).ok(),
        status => {
            return Err(Error::invalid("status", format!("is {status}; must be 0 or from 100 to 599")));
        }
    };
    let known = |tokens: u64| (tokens > 0).then_some(tokens);
    let of_model = || catalogue::find(&request.model).map(|facts| facts.window);
    let class = classify(&FailureReport {
        format: convert::wire_format(request.format()),
        status,
        code: &request.code,
        message: &request.message,
        tokens: known(request.request_tokens),
        context_window: known(request.context_window_tokens).or_else(of_model),
        connection_lost: request.connection_lost,
    });
    Ok(pb::ClassifyFailureResponse {
        failure_class: class_to(class).into(),
        action: action_to(class.action()).into(),
    })
}

fn class_to(class: FailureClass) -> pb::FailureClass {
    match class {
        FailureClass::ContextOverflow => pb::FailureClass::ContextOverflow,
        FailureClass::RateLimit => pb::FailureClass::RateLimit,
        FailureClass::Overloaded => pb::FailureClass::Overloaded,
        FailureClass::Auth => pb::FailureClass::Auth,
        FailureClass::Structure => pb::FailureClass::Structure,
        FailureClass::OpaqueContent => pb::FailureClass::OpaqueContent,
        FailureClass::Media => pb::FailureClass::Media,
        FailureClass::OutputLimit => pb::FailureClass::OutputLimit,
        FailureClass::ContentPolicy => pb::FailureClass::ContentPolicy,
        FailureClass::Network => pb::FailureClass::Network,
        FailureClass::Quota => pb::FailureClass::Quota,
        FailureClass::BadRequest => pb::FailureClass::BadRequest,
        // What a report says is never one of the service's own calls.
        FailureClass::InvalidAnswer | FailureClass::Unknown => pb::FailureClass::Unknown,
    }
}

fn action_to(action: Action) -> pb::FailureAction {
    match action {
        Action::CompactAndRetry => pb::FailureAction::CompactAndRetry,
        Action::BackOff => pb::FailureAction::BackOff,
        Action::Repair => pb::FailureAction::Repair,
        Action::DropOpaque => pb::FailureAction::DropOpaque,
        Action::DropMedia => pb::FailureAction::DropMedia,
        Action::ShrinkOutput => pb::FailureAction::ShrinkOutput,
        Action::GiveUp => pb::FailureAction::GiveUp,
    }
}
