//! What a pod's life shows and asks for while the runtime takes its time, or has forgotten what it knew.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use keelson_fakes::cri::{Fault, Rpc};
use keelson_tests::pods::sleeper;
use keelson_tests::suite::Suite;
use keelson_tests::wait::{until, until_true};
use serde_json::{Value, json};

use super::{LIMIT, Stage, quiet};

pub async fn run(
    suite: &mut Suite,
    dir: &mut impl FnMut(&Suite) -> Result<std::path::PathBuf>,
) -> Result<()> {
    let case = "a pod's address and readiness are shown while an image is pulled";
    suite.case(case, LIMIT * 3, shown_meanwhile(&dir(suite)?)).await;
    let case = "a runtime that has forgotten a container is not let overwrite its log";
    suite.case(case, LIMIT * 2, counted_by_logs(&dir(suite)?)).await;
    let case = "the runtime is told how large a pod is";
    suite.case(case, LIMIT * 2, size(&dir(suite)?)).await;
    Ok(())
}

fn status(stage: &Stage, name: &str) -> Value {
    stage.api.get("pods", "default", name).map(|p| p["status"].clone()).unwrap_or_default()
}

fn container<'a>(status: &'a Value, name: &str) -> &'a Value {
    let all = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().find(|c| c["name"] == name).unwrap_or(&Value::Null)
}

async fn shown_meanwhile(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    stage.cri.exec_answers(0, b"");
    stage.cri.fault(Rpc::PullImage, Fault::Hang);
    let mut main = sleeper("main");
    main["readinessProbe"] =
        json!({"exec": {"command": ["true"]}, "periodSeconds": 1, "failureThreshold": 1});
    let mut late = sleeper("late");
    late["image"] = json!("registry.invalid/large:1");
    late["imagePullPolicy"] = json!("Always");
    let mut pod = quiet("pulling");
    pod["spec"]["containers"] = json!([main, late]);
    stage.api.put("pods", &pod);
    until_true("the address and the container that runs are shown", LIMIT, async || {
        let status = status(&stage, "pulling");
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let sandbox = conditions.iter().find(|c| c["type"] == "PodReadyToStartContainers");
        Ok(status["podIP"].is_string()
            && sandbox.is_some_and(|c| c["status"] == "True")
            && container(&status, "main")["state"]["running"].is_object())
    })
    .await?;
    ensure!(stage.cri.calls(Rpc::PullImage) == 1, "the pull was not waited for");
    stage.cri.clear();
    stage.wait_ready("pulling").await?;

    // The other one is pulled again for its next instance, and does not come back.
    stage.cri.fault(Rpc::PullImage, Fault::Hang);
    let id = stage.cri.container_ids("late").pop().context("no container")?;
    ensure!(stage.cri.exit_container(&id, 1), "it did not run");
    until_true("its image is pulled again", LIMIT, async || Ok(stage.cri.calls(Rpc::PullImage) == 2)).await?;
    for (code, ready) in [(1, false), (0, true)] {
        stage.cri.exec_answers(code, b"");
        until_true(&format!("readiness {ready} is shown"), LIMIT, async || {
            Ok(container(&status(&stage, "pulling"), "main")["ready"] == json!(ready))
        })
        .await?;
    }
    ensure!(stage.cri.calls(Rpc::PullImage) == 2, "the pull was not waited for");
    stage.cri.clear();
    stage.wait_ready("pulling").await
}

async fn counted_by_logs(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    stage.cri.fault(Rpc::RunPodSandbox, Fault::Hang);
    let bound = stage.bind("forgotten");
    until_true("its sandbox is asked for", LIMIT, async || Ok(stage.cri.calls(Rpc::RunPodSandbox) > 0))
        .await?;
    let uid = bound["metadata"]["uid"].as_str().context("no uid")?;
    let logs = stage.agent.pod_logs().join(format!("default_forgotten_{uid}/main"));
    std::fs::create_dir_all(&logs)?;
    for name in ["2.log", "10.log.20260102-030405.gz"] {
        std::fs::write(logs.join(name), "an earlier instance")?;
    }
    stage.cri.clear();
    stage.wait_ready("forgotten").await?;
    let id = stage.cri.container_ids("main").pop().context("no container")?;
    let config = stage.cri.container_config(&id).context("no configuration")?;
    let attempt = config.metadata.map(|m| m.attempt);
    ensure!(
        attempt == Some(11) && config.log_path == "main/11.log",
        "{attempt:?} logs to {}",
        config.log_path
    );
    let shown = status(&stage, "forgotten");
    ensure!(container(&shown, "main")["restartCount"] == 11, "the status is {shown}");
    Ok(())
}

async fn size(dir: &Path) -> Result<()> {
    let stage = Stage::set(dir).await?;
    let mut pod = quiet("sized");
    let half = json!({"cpu": "500m", "memory": "64Mi"});
    pod["spec"]["containers"][0]["resources"] = json!({"requests": half, "limits": half});
    pod["spec"]["overhead"] = json!({"cpu": "250m", "memory": "16Mi"});
    stage.api.put("pods", &pod);
    let made = async || Ok(stage.cri.sandbox_ids().first().and_then(|id| stage.cri.sandbox_config(id)));
    let linux = until("a sandbox", LIMIT, made).await?.linux.context("no linux part")?;
    let (own, extra) = (linux.resources.context("no resources")?, linux.overhead.context("no overhead")?);
    let own = (own.cpu_shares, own.cpu_quota, own.memory_limit_in_bytes);
    let extra = (extra.cpu_shares, extra.cpu_quota, extra.memory_limit_in_bytes);
    ensure!(own == (512, 50_000, 64 << 20), "the containers are {own:?}");
    ensure!(extra == (256, 25_000, 16 << 20), "the overhead is {extra:?}");
    stage.wait_ready("sized").await
}
