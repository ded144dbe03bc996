use futures::StreamExt as _;

use super::*;
use crate::Update;

fn node(name: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"a": "b"}, "annotations": {"public-ip": address},
                     "managedFields": [{"manager": "test"}]},
        "spec": {"podCIDR": "10.1.0.0/24"},
        "status": {"images": [{"names": ["i"]}]},
    })
}

#[tokio::test]
async fn nodes_are_followed_by_the_few_fields_that_an_overlay_needs() {
    let rig = rig().await;
    rig.fake.put("nodes", &node("n2", "192.0.2.2"));
    let mut nodes = Box::pin(rig.api.nodes());
    let mut next = async || match soon(nodes.next()).await.unwrap() {
        Update::Synced { items, .. } => format!("synced {items:?}"),
        Update::Applied(node) => format!("{} at {}", node.name, node.annotations["public-ip"]),
        Update::Deleted(node) => format!("{} deleted", node.name),
        Update::Disconnected(error) => panic!("{error}"),
    };
    let first = next().await;
    assert!(first.contains("192.0.2.2") && first.contains("10.1.0.0/24"), "{first}");
    rig.fake.put("nodes", &node("n2", "192.0.2.3"));
    assert_eq!(next().await, "n2 at 192.0.2.3");
    // Goes on from the version of that node, of which nothing else but this is kept.
    rig.fake.close_watches();
    rig.fake.remove("nodes", "", "n2");
    assert_eq!(next().await, "n2 deleted");
    assert_eq!(rig.fake.requests("list", "nodes"), 1);
}

#[tokio::test]
async fn a_node_follows_its_own_object_and_no_other() {
    let rig = rig().await;
    rig.fake.put("nodes", &node("n2", "192.0.2.2"));
    let mut updates = Box::pin(rig.api.own_node());
    let mut next = async || match soon(updates.next()).await.unwrap() {
        Update::Synced { items, .. } => format!("synced {}", items.len()),
        Update::Applied(node) => format!("{} applied", node.metadata.name.unwrap()),
        Update::Deleted(node) => format!("{} deleted", node.metadata.name.unwrap()),
        Update::Disconnected(error) => panic!("{error}"),
    };
    assert_eq!(next().await, "synced 0");
    rig.fake.put("nodes", &node("n2", "192.0.2.3"));
    rig.fake.put("nodes", &node("n1", "192.0.2.1"));
    assert_eq!(next().await, "n1 applied");
    rig.fake.remove("nodes", "", "n1");
    assert_eq!(next().await, "n1 deleted");
}
