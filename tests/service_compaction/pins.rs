//! Pins that code found, where there is no room for all.

use super::*;

on_embedded_backend!(
    pins_that_code_found_and_that_give_way_are_losses,
    a_callers_pin_makes_those_give_way_that_code_found,
    pins_may_take_the_share_that_the_operator_sets,
);

async fn pins_that_code_found_and_that_give_way_are_losses(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Batch, CONTEXT)).await;
    service.append(SESSION, &[user(OpenaiChat, "count to a hundred")]).await;
    put_pin(&service, "own", "count in words").await.unwrap();
    let rule = |number: usize| {
        format!("Never touch the file src/module_{number}/handler.rs, whatever comes up in this work.")
    };
    let mut gave_way = Vec::new();
    for round in 0..4 {
        for number in round * 6..round * 6 + 6 {
            service.append(SESSION, &[user(OpenaiChat, &rule(number)), model(OpenaiChat, "yes")]).await;
        }
        let known = list(&service).await.len();
        work(&service, OpenaiChat, round * 100..round * 100 + 14).await;
        let compactions = list(&service).await;
        for compaction in compactions[..compactions.len() - known].iter().rev() {
            let lost = compaction.losses.iter().filter(|loss| loss.subject == "pin");
            gave_way.extend(lost.map(|loss| (loss.text.clone(), loss.seq)));
            let pins = compaction.losses.iter().take_while(|loss| loss.subject == "pin").count();
            assert!(compaction.losses[pins..].iter().all(|loss| loss.subject != "pin"), "pins come first");
        }
    }
    assert!(gave_way.len() > 3 && gave_way.is_sorted_by_key(|(_, seq)| *seq), "{gave_way:?}");
    for (number, (text, _)) in gave_way.iter().enumerate() {
        assert_eq!(*text, rule(number), "the oldest first");
    }
    let window = service.window(SESSION).await.payloads().concat();
    assert!(window.contains("count in words") && !window.contains(&rule(0)), "{window}");
    // What gave way is not forgotten: the log has it.
    assert!(service.read(SESSION).await.payloads().concat().contains(&rule(0)));
}

async fn a_callers_pin_makes_those_give_way_that_code_found(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_path(OpenaiChat, pb::CompressionPath::Batch, CONTEXT)).await;
    for number in 0..30 {
        let rule = format!("Never touch the file src/module_{number}/handler.rs, whatever comes up.");
        service.append(SESSION, &[user(OpenaiChat, &rule), model(OpenaiChat, "yes")]).await;
    }
    work(&service, OpenaiChat, 0..20).await;
    let pins = async || {
        let request = pb::ListPinsRequest { parent: SESSION.to_owned() };
        answer(service.client.memory.clone().list_pins(request).await).unwrap().pins
    };
    let found = pins().await;
    assert!(found.len() > 4 && found.iter().all(|pin| pin.name.starts_with("found-")), "{found:?}");
    // Too large were it the only one: nothing gives way.
    let refusal = put_pin(&service, "own", &"much more than a tenth ".repeat(100)).await.unwrap_err();
    assert!(refusal.message.contains("at most"), "{}", refusal.message);
    assert_eq!(pins().await, found);
    let text = "use tabs, not spaces, in what you write ".repeat(8);
    put_pin(&service, "own", &text).await.unwrap();
    let left = pins().await;
    let own = left.last().unwrap();
    assert_eq!((own.name.as_str(), own.text.as_str()), ("own", text.as_str()));
    assert!(left.len() > 1 && left.len() < found.len(), "{} of {}", left.len(), found.len());
    assert_eq!(left[..left.len() - 1], found[found.len() + 1 - left.len()..], "the oldest went");
    let window = service.window(SESSION).await.payloads().concat();
    for (number, pin) in found.iter().enumerate() {
        assert_eq!(window.contains(&pin.text), number + left.len() > found.len(), "{}", pin.text);
    }
}

async fn pins_may_take_the_share_that_the_operator_sets(backend: Backend) {
    let text = "pinned ".repeat(500);
    // Of 3,000 tokens that are usable.
    for (percent, most) in [(0, Some(0)), (10, Some(300)), (25, None)] {
        let service =
            Service::start_with(&backend, |settings| settings.compaction.pins_percent = percent).await;
        let id = format!("share-{percent}");
        service.create(&id, of_path(OpenaiChat, pb::CompressionPath::Batch, CONTEXT)).await;
        let pin = pb::Pin { name: "own".to_owned(), text: text.clone(), seq: 0 };
        let request = pb::PutPinRequest { parent: format!("sessions/{id}"), pin: Some(pin) };
        let refused = answer(service.client.memory.clone().put_pin(request).await).err();
        let said = most.map(|most| format!("at most {most} are allowed"));
        match (refused, said) {
            (Some(refusal), Some(said)) => assert!(refusal.message.contains(&said), "{}", refusal.message),
            (refusal, said) => assert!(refusal.is_none() && said.is_none(), "{percent} %: {refusal:?}"),
        }
        service.stop().await;
    }
}
