//! Rendering where results are entries of their own.

use super::edit::{with_element_id, with_value};
use super::round::{Api, Rendered, RenderedItem, Scene, Slot};
use crate::format::json::string_token;
use crate::format::{ResultPlace, Role, interrupted_result};
use crate::model::{Item, Origin, UnansweredCall, WireFormat};
use bytes::Bytes;

/// Renders a round: the step with its results, then all else in its order.
pub(super) fn render(api: Api, scene: Scene<'_>) -> Rendered {
    let mut rendered = Rendered::default();
    let asides = scene.slots.iter().position(Slot::is_aside).unwrap_or(scene.slots.len());
    let (step, asides) = scene.slots.split_at(asides);
    let in_call_order = api.rules.results == ResultPlace::InCallOrder;
    let stays = |slot: &&Slot| !in_call_order || slot.role != Role::Results;
    rendered.items.extend(step.iter().filter(stays).map(RenderedItem::of_slot));
    let mut newest = None;
    let mut settled = None;
    for (call, result) in scene.calls() {
        match result.and_then(|result| Some((result, scene.slot_of(result)?))) {
            Some((result, _)) if !result.is_late && !in_call_order => {}
            Some((result, slot)) => {
                if result.is_late || newest > Some(result.seq) {
                    rendered.result_moved(&call.call, result);
                }
                newest = newest.max(Some(result.seq));
                rendered.items.push(RenderedItem::of_slot(slot));
            }
            None => {
                if scene.is_provisional() && (in_call_order || scene.closes_pending) {
                    settled.get_or_insert(rendered.items.len());
                }
                if !scene.is_open() {
                    rendered.result_added(&call.call);
                    rendered.items.push(interrupted(api, &call.shown()));
                }
            }
        }
    }
    rendered.items.extend(asides.iter().map(RenderedItem::of_slot));
    rendered.stable = settled.unwrap_or(rendered.items.len());
    rendered
}

/// `payload` with another id for its call.
pub(super) fn with_call_id(format: WireFormat, payload: &Bytes, index: usize, id: &str) -> Bytes {
    match format {
        WireFormat::OpenaiChat => with_element_id(payload, "tool_calls", index, &string_token(id)),
        _ => with_value(payload, &["call_id"], &string_token(id)),
    }
}

/// `payload` with another id for the call that it is the result of.
pub(super) fn with_result_id(format: WireFormat, payload: &Bytes, id: &str) -> Bytes {
    let member = if format == WireFormat::OpenaiChat { "tool_call_id" } else { "call_id" };
    with_value(payload, &[member], &string_token(id))
}

fn interrupted(api: Api, call: &UnansweredCall) -> RenderedItem {
    let payload = Bytes::from(interrupted_result(api.format, call));
    let tokens = api.tokens(&payload);
    RenderedItem { item: Item { payload, origin: Origin::Repair, seqs: Vec::new(), tokens }, entry: None }
}
