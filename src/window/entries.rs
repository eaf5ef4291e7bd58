//! Rendering where results are entries of their own.

use super::edit::{with_value, with_values};
use super::round::{Api, Rendered, RenderedItem, Scene, Slot};
use crate::format::json::{Value, string_token};
use crate::format::{ResultPlace, Role, interrupted_result};
use crate::model::{Item, Origin, UnansweredCall, WireFormat};
use bytes::Bytes;

/// Renders a round: the step with its results, then all else in its order.
pub(super) fn render(api: Api, scene: Scene<'_>) -> Rendered {
    let mut rendered = Rendered::default();
    let (step, asides) = scene.slots.split_at(scene.step);
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
                } else {
                    newest = Some(result.seq);
                }
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

/// `payload` with other ids for its calls, in their order. An id that has no
/// place in it is taken away.
pub(super) fn with_call_ids(format: WireFormat, payload: &Bytes, ids: &mut [Option<String>]) -> Bytes {
    let entry = Value::of(payload);
    let places: Vec<_> = match format {
        WireFormat::OpenaiChat => {
            let calls = entry.member("tool_calls").into_iter().flat_map(Value::elements);
            calls.map(|call| call.member("id")).collect()
        }
        _ => vec![entry.member("call_id")],
    };
    let mut tokens = Vec::new();
    for (id, place) in ids.iter_mut().zip(places.into_iter().chain(std::iter::repeat(None))) {
        match (&id, place) {
            (Some(id), Some(place)) => tokens.push((place.range(), string_token(id))),
            (Some(_), None) => *id = None,
            (None, _) => {}
        }
    }
    with_values(payload, &tokens)
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
