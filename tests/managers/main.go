// Writes what the kubelet's own managers of CPUs, memory and topology decide for generated machines and pods, a JSON object
// a line. A hint is a list of NUMA nodes as the kernel writes one, with a ! when it is preferred; a state is the
// checksum of the checkpoint that holds it.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand"
	"os"
	"sort"
	"strings"

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	memstate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/utils/cpuset"
)

var silent = logr.Discard()

type affinity struct{ hint topologymanager.TopologyHint }

func (a *affinity) GetAffinity(string, string) topologymanager.TopologyHint { return a.hint }
func (a *affinity) Name() string                                            { return "" }
func (a *affinity) GetPolicy() topologymanager.Policy                       { return topologymanager.NewNonePolicy() }

func shown(h topologymanager.TopologyHint) string {
	text := "any"
	if h.NUMANodeAffinity != nil {
		text = cpuset.New(h.NUMANodeAffinity.GetBits()...).String()
	}
	if h.Preferred {
		text += "!"
	}
	return text
}

func allShown(hints []topologymanager.TopologyHint) []string {
	texts := []string{}
	for _, h := range hints {
		texts = append(texts, shown(h))
	}
	return texts
}

// A machine of many NUMA nodes has hundreds of hints: the first few, and a hash of them all.
func shortened(texts []string) []string {
	if len(texts) <= 8 {
		return texts
	}
	hash := fnv.New32a()
	hash.Write([]byte(strings.Join(texts, " ")))
	return append(texts[:4:4], fmt.Sprintf("%d hints: %d", len(texts), hash.Sum32()))
}

type Step struct {
	Pod        int      `json:"pod"`
	Containers []Wanted `json:"containers,omitempty"`
	Container  string   `json:"container"`
	Remove     bool     `json:"remove,omitempty"`
	Hint       string   `json:"hint,omitempty"`
	Hints      []string `json:"hints,omitempty"`
	Error      string   `json:"error,omitempty"`
	State      uint64   `json:"state"`
}

type Wanted struct {
	Name string `json:"name"`
	CPUs int    `json:"cpus"`
	Kind string `json:"kind"` // init, sidecar, main
}

type Case struct {
	CPUs     [][5]int          `json:"cpus"` // cpu, NUMA node, socket, core, uncore cache
	Sockets  int               `json:"sockets"`
	Reserved int               `json:"reserved"`
	Options  map[string]string `json:"options,omitempty"`
	Refused  string            `json:"refused,omitempty"`
	Taken    string            `json:"reservedCpus"`
	Steps    []Step            `json:"steps"`
}

func machine(r *rand.Rand) *topology.CPUTopology {
	sockets, perSocket, cores, threads := 1+r.Intn(3), 1+r.Intn(3), 1+r.Intn(5), 1+r.Intn(2)
	socketsPerNode := 1
	if r.Intn(5) == 0 {
		perSocket, socketsPerNode = 1, 2
		sockets *= 2
	}
	caches := 1 + r.Intn(2)
	interleaved := r.Intn(3) == 0
	nodes := sockets * perSocket / socketsPerNode
	coresInNode := cores * socketsPerNode
	all := nodes * coresInNode
	details := topology.CPUDetails{}
	for n := 0; n < all; n++ {
		node := n / coresInNode
		socket := node / perSocket
		if socketsPerNode == 2 {
			socket = n / cores
		}
		cache := n * caches / coresInNode
		for t := 0; t < threads; t++ {
			cpu := n + t*all
			if interleaved {
				cpu = n*threads + t
			}
			details[cpu] = topology.CPUInfo{NUMANodeID: node, SocketID: socket, CoreID: n, UncoreCacheID: cache}
		}
	}
	// A core has the number of its first CPU.
	first := map[int]int{}
	for cpu, info := range details {
		if f, ok := first[info.CoreID]; !ok || cpu < f {
			first[info.CoreID] = cpu
		}
	}
	for cpu, info := range details {
		info.CoreID = first[info.CoreID]
		details[cpu] = info
	}
	count := map[int]bool{}
	for _, info := range details {
		count[info.CoreID] = true
	}
	return &topology.CPUTopology{
		NumCPUs: len(details), NumCores: len(count), NumSockets: sockets, NumNUMANodes: details.NUMANodes().Size(),
		NumUncoreCache: details.UncoreCaches().Size(), CPUDetails: details,
	}
}

func options(r *rand.Rand) map[string]string {
	found := map[string]string{}
	for _, name := range []string{"full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket", "distribute-cpus-across-cores", "strict-cpu-reservation", "prefer-align-cpus-by-uncorecache"} {
		if r.Intn(4) == 0 {
			found[name] = "true"
		}
	}
	return found
}

func pod(n int, wanted []Wanted) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", n), UID: types.UID(fmt.Sprint("pod-", n))}}
	always := v1.ContainerRestartPolicyAlways
	for _, w := range wanted {
		list := v1.ResourceList{v1.ResourceCPU: *resource.NewQuantity(int64(w.CPUs), resource.DecimalSI), v1.ResourceMemory: resource.MustParse("1Mi")}
		if w.CPUs == 0 {
			list[v1.ResourceCPU] = resource.MustParse("500m")
		}
		c := v1.Container{Name: w.Name, Resources: v1.ResourceRequirements{Requests: list, Limits: list}}
		switch w.Kind {
		case "main":
			pod.Spec.Containers = append(pod.Spec.Containers, c)
		case "sidecar":
			c.RestartPolicy = &always
			fallthrough
		default:
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
		}
	}
	return pod
}

func checksum(c checkpointmanager.Checkpoint) uint64 {
	blob, err := c.MarshalCheckpoint()
	if err != nil {
		panic(err)
	}
	var read struct{ Checksum uint64 }
	if err := json.Unmarshal(blob, &read); err != nil {
		panic(err)
	}
	return read.Checksum
}

func cpuState(s state.State) uint64 {
	c := state.CPUManagerCheckpointV2{PolicyName: "static", DefaultCPUSet: s.GetDefaultCPUSet().String(), Entries: map[string]map[string]string{}}
	for pod, containers := range s.GetCPUAssignments() {
		c.Entries[pod] = map[string]string{}
		for name, cpus := range containers {
			c.Entries[pod][name] = cpus.String()
		}
	}
	return checksum(&c)
}

func one(r *rand.Rand) Case {
	topo := machine(r)
	c := Case{Sockets: topo.NumSockets, Reserved: r.Intn(3), Options: options(r)}
	for _, cpu := range topo.CPUDetails.CPUs().List() {
		i := topo.CPUDetails[cpu]
		c.CPUs = append(c.CPUs, [5]int{cpu, i.NUMANodeID, i.SocketID, i.CoreID, i.UncoreCacheID})
	}
	store := &affinity{}
	policy, err := cpumanager.NewStaticPolicy(silent, topo, c.Reserved, cpuset.New(), store, c.Options)
	if err != nil {
		c.Refused = err.Error()
		return c
	}
	s := state.NewMemoryState(silent)
	if err := policy.Start(silent, s); err != nil {
		c.Refused = err.Error()
		return c
	}
	c.Taken = topo.CPUDetails.CPUs().Difference(policy.GetAllocatableCPUs(s)).String()
	pods := map[int]*v1.Pod{}
	specs := map[int][]Wanted{}
	slots := [4]int{0, 1, 2, 3}
	for n := 0; n < 12; n++ {
		slot := r.Intn(4)
		which := slots[slot]
		if p, ok := pods[which]; ok {
			for _, container := range append(p.Spec.InitContainers, p.Spec.Containers...) {
				step := Step{Pod: which, Container: container.Name, Remove: true}
				if err := policy.RemoveContainer(silent, s, string(p.UID), container.Name); err != nil {
					step.Error = err.Error()
				}
				step.State = cpuState(s)
				c.Steps = append(c.Steps, step)
			}
			delete(pods, which)
			// Another pod has another uid.
			slots[slot] += 4
			continue
		}
		var wanted []Wanted
		for i, kinds := 0, []string{"init", "sidecar", "main", "main"}; i < len(kinds); i++ {
			if kinds[i] != "main" && r.Intn(3) > 0 || i == 3 && r.Intn(2) > 0 {
				continue
			}
			wanted = append(wanted, Wanted{Name: fmt.Sprint(kinds[i], i), CPUs: r.Intn(1 + topo.NumCPUs/2), Kind: kinds[i]})
		}
		specs[which] = wanted
		p := pod(which, wanted)
		pods[which] = p
		for i, container := range append(p.Spec.InitContainers, p.Spec.Containers...) {
			step := Step{Pod: which, Container: container.Name}
			if i == 0 {
				step.Containers = wanted
			}
			hints, asked := policy.GetTopologyHints(silent, s, p, &container)["cpu"]
			step.Hints = shortened(allShown(hints))
			store.hint = topologymanager.TopologyHint{}
			if asked && len(hints) > 0 && r.Intn(2) == 0 {
				store.hint = hints[r.Intn(len(hints))]
			}
			step.Hint = shown(store.hint)
			if err := policy.Allocate(silent, s, p, &container); err != nil {
				step.Error = err.Error()
			}
			step.State = cpuState(s)
			c.Steps = append(c.Steps, step)
		}
	}
	return c
}

type MemoryStep struct {
	Pod        int                 `json:"pod"`
	Containers []MemoryWanted      `json:"containers,omitempty"`
	Container  string              `json:"container"`
	Remove     bool                `json:"remove,omitempty"`
	Hint       string              `json:"hint,omitempty"`
	Hints      map[string][]string `json:"hints,omitempty"`
	Error      string              `json:"error,omitempty"`
	State      uint64              `json:"state"`
}

type MemoryWanted struct {
	Name string            `json:"name"`
	Kind string            `json:"kind"`
	Size map[string]uint64 `json:"size"`
}

type MemoryCase struct {
	Machine memstate.NUMANodeMap `json:"machine"`
	Steps   []MemoryStep         `json:"steps"`
}

func memoryState(s memstate.State) uint64 {
	c := memstate.MemoryManagerCheckpointV1{PolicyName: "Static", MachineState: s.GetMachineState(), Entries: memstate.ContainerMemoryAssignments{}}
	for pod, containers := range s.GetMemoryAssignments() {
		c.Entries[pod] = map[string][]memstate.Block{}
		for name, blocks := range containers {
			// The order in which a map gave them.
			sorted := append([]memstate.Block{}, blocks...)
			sort.Slice(sorted, func(i, j int) bool { return sorted[i].Type < sorted[j].Type })
			c.Entries[pod][name] = sorted
		}
	}
	return checksum(&c)
}

func memory(r *rand.Rand) MemoryCase {
	const mi = 1 << 20
	info := &cadvisorapi.MachineInfo{}
	reserved := map[int]map[v1.ResourceName]uint64{0: {v1.ResourceMemory: 100 * mi}}
	huge := r.Intn(2) == 0
	for n := 0; n < 1+r.Intn(4); n++ {
		node := cadvisorapi.Node{Id: n, Memory: uint64(500+r.Intn(1000)) * mi}
		if huge {
			node.HugePages = []cadvisorapi.HugePagesInfo{{PageSize: 2048, NumPages: uint64(r.Intn(100))}}
		}
		info.Topology = append(info.Topology, node)
	}
	store := &affinity{}
	policy, err := memorymanager.NewPolicyStatic(silent, info, reserved, store)
	if err != nil {
		panic(err)
	}
	s := memstate.NewMemoryState(silent)
	if err := policy.Start(silent, s); err != nil {
		panic(err)
	}
	c := MemoryCase{Machine: s.GetMachineState().Clone()}
	pods := map[int]*v1.Pod{}
	slots := [4]int{0, 1, 2, 3}
	for n := 0; n < 12; n++ {
		slot := r.Intn(4)
		which := slots[slot]
		if p, ok := pods[which]; ok {
			for _, container := range append(p.Spec.InitContainers, p.Spec.Containers...) {
				policy.RemoveContainer(silent, s, string(p.UID), container.Name)
				step := MemoryStep{Pod: which, Container: container.Name, Remove: true}
				step.State = memoryState(s)
				c.Steps = append(c.Steps, step)
			}
			delete(pods, which)
			slots[slot] += 4
			continue
		}
		var wanted []MemoryWanted
		for i, kinds := 0, []string{"init", "init", "sidecar", "main", "main"}; i < len(kinds); i++ {
			if kinds[i] != "main" && r.Intn(3) > 0 || i == 4 && r.Intn(2) > 0 {
				continue
			}
			w := MemoryWanted{Name: fmt.Sprint(kinds[i], i), Kind: kinds[i], Size: map[string]uint64{"memory": uint64(50+r.Intn(900)) * mi}}
			if huge && r.Intn(3) == 0 {
				w.Size["hugepages-2Mi"] = uint64(1+r.Intn(60)) * 2 * mi
			}
			wanted = append(wanted, w)
		}
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pod-", which), UID: types.UID(fmt.Sprint("pod-", which))}}
		always := v1.ContainerRestartPolicyAlways
		for _, w := range wanted {
			list := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
			for name, size := range w.Size {
				list[v1.ResourceName(name)] = *resource.NewQuantity(int64(size), resource.BinarySI)
			}
			ctr := v1.Container{Name: w.Name, Resources: v1.ResourceRequirements{Requests: list, Limits: list}}
			switch w.Kind {
			case "main":
				p.Spec.Containers = append(p.Spec.Containers, ctr)
			case "sidecar":
				ctr.RestartPolicy = &always
				fallthrough
			default:
				p.Spec.InitContainers = append(p.Spec.InitContainers, ctr)
			}
		}
		pods[which] = p
		for i, container := range append(p.Spec.InitContainers, p.Spec.Containers...) {
			step := MemoryStep{Pod: which, Container: container.Name}
			if i == 0 {
				step.Containers = wanted
			}
			all := policy.GetTopologyHints(silent, s, p, &container)
			step.Hints = map[string][]string{}
			for name, hints := range all {
				step.Hints[name] = shortened(allShown(hints))
			}
			store.hint = topologymanager.TopologyHint{Preferred: r.Intn(3) == 0}
			if hints := all["memory"]; len(hints) > 0 && r.Intn(2) == 0 {
				store.hint = hints[r.Intn(len(hints))]
			}
			step.Hint = shown(store.hint)
			if err := policy.Allocate(silent, s, p, &container); err != nil {
				step.Error = err.Error()
			}
			step.State = memoryState(s)
			c.Steps = append(c.Steps, step)
		}
	}
	return c
}

type Merge struct {
	Policy    string           `json:"policy"`
	Nodes     []int            `json:"nodes"`
	Distances map[int][]uint64 `json:"distances,omitempty"`
	Wishes    [][]string       `json:"wishes"` // null: anywhere
	Hint      string           `json:"hint"`
	Admitted  bool             `json:"admitted"`
}

func merge(r *rand.Rand) Merge {
	m := Merge{Wishes: [][]string{}}
	count := 1 + r.Intn(4)
	info := &topologymanager.NUMAInfo{NUMADistances: topologymanager.NUMADistances{}}
	opts := topologymanager.PolicyOptions{PreferClosestNUMA: r.Intn(2) == 0}
	for n := 0; n < count; n++ {
		m.Nodes = append(m.Nodes, n)
		row := []uint64{}
		for k := 0; k < count; k++ {
			if k == n {
				row = append(row, 10)
			} else {
				row = append(row, uint64(20+10*((n+k)%3)))
			}
		}
		info.NUMADistances[n] = row
	}
	info.Nodes = m.Nodes
	if opts.PreferClosestNUMA {
		m.Distances = info.NUMADistances
	}
	var providers []map[string][]topologymanager.TopologyHint
	for n := r.Intn(4); n >= 0; n-- {
		switch r.Intn(6) {
		case 0:
			providers = append(providers, nil)
			m.Wishes = append(m.Wishes, nil)
		case 1:
			providers = append(providers, map[string][]topologymanager.TopologyHint{"x": {}})
			m.Wishes = append(m.Wishes, []string{})
		default:
			hints := []topologymanager.TopologyHint{}
			bitmask.IterateBitMasks(m.Nodes, func(mask bitmask.BitMask) {
				if r.Intn(2) == 0 {
					hints = append(hints, topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: r.Intn(2) == 0})
				}
			})
			providers = append(providers, map[string][]topologymanager.TopologyHint{"x": hints})
			m.Wishes = append(m.Wishes, allShown(hints))
		}
	}
	var policy topologymanager.Policy
	switch r.Intn(3) {
	case 0:
		policy = topologymanager.NewBestEffortPolicy(info, opts)
	case 1:
		policy = topologymanager.NewRestrictedPolicy(info, opts)
	default:
		policy = topologymanager.NewSingleNumaNodePolicy(info, opts)
	}
	m.Policy = policy.Name()
	hint, admitted := policy.Merge(silent, providers)
	m.Admitted = admitted
	m.Hint = shown(hint)
	return m
}

func main() {
	seed, cases, merges := flag.Int64("seed", 1, ""), flag.Int("cases", 200, "of CPUs, and of memory"), flag.Int("merges", 400, "")
	flag.Parse()
	if err := utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true"); err != nil {
		panic(err)
	}
	r := rand.New(rand.NewSource(*seed))
	out := json.NewEncoder(os.Stdout)
	for n := 0; n < *cases; n++ {
		out.Encode(map[string]any{"cpu": one(r)})
	}
	for n := 0; n < *cases; n++ {
		out.Encode(map[string]any{"memory": memory(r)})
	}
	for n := 0; n < *merges; n++ {
		out.Encode(map[string]any{"merge": merge(r)})
	}
}
