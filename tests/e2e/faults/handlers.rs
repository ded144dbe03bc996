//! The handlers of the runtime: which one a pod gets by its RuntimeClass, and what each can do.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use keelson_proto::runtime::v1::{NamespaceMode, RuntimeHandlerFeatures};
use keelson_tests::suite::Suite;
use keelson_tests::wait::until_true;
use serde_json::json;

use super::{LIMIT, Stage, quiet};

pub async fn run(suite: &mut Suite, dir: &mut impl FnMut(&Suite) -> Result<PathBuf>) -> Result<()> {
    let case = "recursive read-only is judged by the handler of the pod's RuntimeClass";
    suite.case(case, LIMIT * 2, recursive_read_only(&dir(suite)?)).await;
    let case = "users of its own are judged by the handler of the pod's RuntimeClass, and one that is missing is named";
    suite.case(case, LIMIT * 2, own_users(&dir(suite)?)).await;
    Ok(())
}

/// The Node shows a handler, so the agent knows it.
async fn knows(stage: &Stage, handler: &str) {
    stage
        .api
        .until(|api| {
            let node = api.get("nodes", "", "node").unwrap_or_default();
            node["status"]["runtimeHandlers"]
                .as_array()
                .is_some_and(|all| all.iter().any(|h| h["name"] == handler))
        })
        .await;
}

async fn recursive_read_only(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    stage.cri.add_handler("", RuntimeHandlerFeatures::default());
    let able = RuntimeHandlerFeatures { recursive_read_only_mounts: true, ..Default::default() };
    stage.cri.add_handler("able", able);
    stage.api.put("runtimeclasses", &json!({"metadata": {"name": "careful"}, "handler": "able"}));
    knows(&stage, "able").await;
    let mut pod = quiet("careful");
    pod["spec"]["runtimeClassName"] = json!("careful");
    pod["spec"]["volumes"] = json!([{"name": "data", "emptyDir": {}}]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/data", "readOnly": true, "recursiveReadOnly": "Enabled"}]);
    stage.api.put("pods", &pod);
    stage.wait_ready("careful").await?;
    let id = stage.cri.container_ids("main").pop().context("no container")?;
    let config = stage.cri.container_config(&id).context("no configuration")?;
    let mount = config.mounts.iter().find(|m| m.container_path == "/data").context("no mount")?;
    ensure!(mount.recursive_read_only, "it is mounted as {mount:?}");
    let shown = stage.api.get("pods", "default", "careful").unwrap_or_default();
    let shown = &shown["status"]["containerStatuses"][0]["volumeMounts"][0]["recursiveReadOnly"];
    ensure!(shown == "Enabled", "the status shows {shown}");
    Ok(())
}

async fn own_users(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    let able = RuntimeHandlerFeatures { user_namespaces: true, ..Default::default() };
    stage.cri.add_handler("", able);
    stage.cri.add_handler("plain", RuntimeHandlerFeatures::default());
    for (class, handler) in [("plain", "plain"), ("unknown", "nobody")] {
        stage.api.put("runtimeclasses", &json!({"metadata": {"name": class}, "handler": handler}));
    }
    knows(&stage, "plain").await;
    let wanting = |name: &str, class: &str| {
        let mut pod = quiet(name);
        pod["spec"]["hostUsers"] = json!(false);
        if !class.is_empty() {
            pod["spec"]["runtimeClassName"] = json!(class);
        }
        pod
    };
    let cannot = |handler: &str| {
        format!(
            "can't set `spec.hostUsers: false`, RuntimeClass handler {handler:?} does not support user namespaces"
        )
    };
    for (class, problem) in [
        ("plain", cannot("plain")),
        ("unknown", format!("{}: the handler \"nobody\" is not known", cannot("nobody"))),
        ("missing", "runtimeclass.node.k8s.io \"missing\" not found".to_owned()),
    ] {
        stage.api.put("pods", &wanting(class, class));
        let words = format!("Failed to create pod sandbox: {problem}");
        until_true(&format!("an event of {class} says {words}"), LIMIT, async || {
            let events = stage.api.all("events");
            let mut own = events.iter().filter(|e| e["involvedObject"]["name"] == class);
            Ok(own.any(|e| e["reason"] == "FailedCreatePodSandBox" && e["message"] == words.as_str()))
        })
        .await?;
    }
    ensure!(stage.cri.sandbox_ids().is_empty(), "a sandbox was made");

    let mut on_host = wanting("on-host", "");
    on_host["spec"]["hostNetwork"] = json!(true);
    stage.api.put("pods", &on_host);
    until_true("what the node does not declare is refused", LIMIT, async || {
        let pod = stage.api.get("pods", "default", "on-host").unwrap_or_default();
        Ok(pod["status"]["phase"] == "Failed" && pod["status"]["reason"] == "PodFeatureUnsupported")
    })
    .await?;

    stage.api.put("pods", &wanting("own", ""));
    stage.wait_ready("own").await?;
    let sandbox = stage.cri.sandbox_ids().pop().context("no sandbox")?;
    let sandbox = stage.cri.sandbox_config(&sandbox).context("no configuration")?;
    let of_sandbox = sandbox.linux.and_then(|l| l.security_context?.namespace_options?.userns_options);
    let of_sandbox = of_sandbox.context("the sandbox has no users of its own")?;
    ensure!(of_sandbox.mode() == NamespaceMode::Pod && of_sandbox.uids.len() == 1, "they are {of_sandbox:?}");
    let id = stage.cri.container_ids("main").pop().context("no container")?;
    let config = stage.cri.container_config(&id).context("no configuration")?;
    let mounts = config.mounts.iter();
    ensure!(
        mounts.clone().count() > 0
            && mounts.clone().all(|m| m.uid_mappings == of_sandbox.uids && m.gid_mappings == of_sandbox.gids),
        "its mounts are {:?}",
        config.mounts
    );
    let of_container = config.linux.and_then(|l| l.security_context?.namespace_options?.userns_options);
    ensure!(of_container.as_ref() == Some(&of_sandbox), "the container has {of_container:?}");
    Ok(())
}
