//! Which interface indexes the kernel has given to our devices and to the underlay.

use keelson_netkit::route::Route;
use keelson_netkit::{IfIndex, IfName};

use super::host_setup::{DeviceRole, HostSetup, RouteVia, WantedRoute};
use super::{Observed, ROUTE_PROTOCOL};

/// Interface indexes as of the last observation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLinks {
    pub underlay: Option<IfIndex>,
    pub devices: Vec<(DeviceRole, IfName, IfIndex)>,
}

impl KernelLinks {
    /// None while a device is missing.
    pub fn resolve(
        setup: &HostSetup,
        roles: impl Iterator<Item = DeviceRole>,
        observed: &Observed,
    ) -> Option<Self> {
        let mut devices: Vec<(DeviceRole, IfName, IfIndex)> = Vec::new();
        for role in roles {
            let name = role.name(&setup.backend)?;
            let index = observed.device(name.as_str())?.index;
            if !devices.iter().any(|d| d.0 == role) {
                devices.push((role, name, index));
            }
        }
        Some(KernelLinks { underlay: Some(observed.underlay?), devices })
    }

    pub fn is_ours(&self, link: IfIndex) -> bool {
        self.devices.iter().any(|d| d.2 == link)
    }

    pub fn role(&self, link: IfIndex) -> Option<DeviceRole> {
        self.devices.iter().find(|d| d.2 == link).map(|d| d.0)
    }

    pub(super) fn device(&self, role: DeviceRole) -> Option<(&IfName, IfIndex)> {
        self.devices.iter().find(|d| d.0 == role).map(|(_, name, index)| (name, *index))
    }

    /// The route with interface indexes; None where its device is missing.
    pub fn resolve_route(&self, wanted: &WantedRoute) -> Option<Route> {
        let mut route = Route { protocol: ROUTE_PROTOCOL, ..Route::to(wanted.dst) };
        match wanted.via {
            RouteVia::Device { role, gateway } => {
                route.link = Some(self.device(role)?.1);
                (route.gateway, route.onlink) = (gateway, gateway.is_some());
            }
            RouteVia::Underlay { gateway } => {
                (route.link, route.gateway) = (Some(self.underlay?), Some(gateway))
            }
        }
        Some(route)
    }
}
