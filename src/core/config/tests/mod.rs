mod credential_providers;
mod files;
mod flags;
mod merging;
mod support;

use super::*;

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn text(name: &str, body: &str) -> ConfigText {
    ConfigText { name: name.into(), text: format!("{HEAD}{body}") }
}

fn config(body: &str) -> ConfigInput {
    ConfigInput { config: Some(text("kubelet.yaml", body)), hostname: "node-1".into(), ..Default::default() }
}

fn flag(name: &str, value: &str) -> (&'static ConfigFlag, String) {
    (CONFIG_FLAGS.iter().find(|flag| flag.name == name).unwrap(), value.into())
}

fn error(input: &ConfigInput) -> String {
    load(input).unwrap_err().to_string()
}
