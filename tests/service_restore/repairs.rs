//! What was changed so that the API takes a window, as headers tell it.

use crate::backends::{Backend, on_embedded_backend};
use crate::messages::{self, STRUCTURED, result, user};
use crate::service::{SESSION, Service, of_format};
use crate::{check_accepted, create, step};
use pb::WireFormat::{BedrockConverse, OpenaiChat};
use turnkeep::rpc::pb;

on_embedded_backend!(repairs_are_listed, a_header_lists_the_newest_repairs_and_counts_all,);

async fn repairs_are_listed(backend: Backend) {
    let service = Service::start(&backend).await;
    for format in STRUCTURED {
        let name = create(&service, format).await;
        let [question, call, result, answer] = step(format, 0);
        let orphan = messages::result(format, "nobody", "cat", "?");
        let payloads = [orphan, question, call, result.clone(), result, answer];
        service.append(&name, &payloads).await;
        let window = service.window(&name).await;
        let repairs: Vec<_> = window
            .header
            .repairs
            .iter()
            .map(|repair| (repair.kind(), repair.seqs.clone(), &repair.id[..]))
            .collect();
        let expected = [
            (pb::RepairKind::OrphanResultOmitted, vec![1], "nobody"),
            (pb::RepairKind::DuplicateResultOmitted, vec![5], "call_0"),
        ];
        assert_eq!(repairs, expected, "{format:?}");
        assert!(window.header.repairs.iter().all(|repair| !repair.detail.is_empty()));
        assert_eq!(window.items.iter().flat_map(|item| item.seqs.clone()).collect::<Vec<_>>(), [2, 3, 4, 6]);
        check_accepted(format, &window, false);

        let unchanged = service.restore_from(&name, &window.header.window_id).await;
        assert_eq!((unchanged.header.repairs, unchanged.items), (vec![], vec![]), "the worker was told");
        let [question, call, result, answer] = step(format, 1);
        service.append(&name, &[question, call, result.clone(), result, answer]).await;
        let change = service.restore_from(&name, &window.header.window_id).await;
        let repairs: Vec<_> = change.header.repairs.iter().map(|repair| &repair.seqs[..]).collect();
        assert_eq!((repairs, change.full_reason()), (vec![&[10][..]], None), "what is new of them");
        assert_eq!(change.applied_to(&window.items), service.window(&name).await.items);
    }
}

async fn a_header_lists_the_newest_repairs_and_counts_all(backend: Backend) {
    let service = Service::start(&backend).await;
    service.create("s", of_format(OpenaiChat)).await;
    let orphan = |i: usize| result(OpenaiChat, &format!("{i:05}{}", "é".repeat(150)), "ls", "?");
    for first in [0, 1_500] {
        service.append(SESSION, &(first..first + 1_500).map(orphan).collect::<Vec<_>>()).await;
    }
    let window = service.window(SESSION).await;
    assert_eq!((window.header.repair_count, window.items.len()), (3_000, 0));
    let told: Vec<_> =
        window.header.repairs.iter().map(|repair| (&repair.seqs[..], &repair.id[..])).collect();
    let expected: Vec<_> = (2_000..3_000).map(|i| ([i + 1], format!("{i:05}{}", "é".repeat(125)))).collect();
    let expected: Vec<_> = expected.iter().map(|(seqs, id)| (&seqs[..], &id[..])).collect();
    assert_eq!(told, expected);

    let merging = create(&service, BedrockConverse).await;
    let words: Vec<_> = (0..100).map(|i| user(BedrockConverse, &i.to_string())).collect();
    service.append(&merging, &words).await;
    let window = service.window(&merging).await;
    assert_eq!(window.header.repairs[0].seqs, (1..=32).collect::<Vec<_>>());
    assert_eq!(window.items[0].seqs.len(), 100);
}
