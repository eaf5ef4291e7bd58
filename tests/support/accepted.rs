//! Windows that an API takes.

use crate::checker;
use crate::service::Restored;
use turnkeep::model::WireFormat;
use turnkeep::rpc::pb;

/// Holds a window against what the API of the format demands.
pub(crate) fn assert_accepted(format: pb::WireFormat, window: &Restored) {
    let items: Vec<_> = window.payloads().iter().map(|item| serde_json::from_str(item).unwrap()).collect();
    let is_complete = window.header.next() == pb::NextStep::Model;
    let verdict = checker::accepts(WireFormat::ALL[format as usize - 1], &items, is_complete);
    assert_eq!(verdict, Ok(()), "{format:?} {items:#?}");
}
