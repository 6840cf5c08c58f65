// Package cluster runs a real Kubernetes for tests: etcd, API server, controller manager, scheduler,
// kubelet and kube-proxy, built from their modules, with Debian's containerd, runc and CNI plugins, and
// CoreDNS. RBAC and the audit log are on.
//
//   - [ControlPlane] is an API server with its store on loopback, up in a few seconds, for what needs no
//     Pods.
//   - [Shared] is a cluster with a node in a network namespace of its own, one for all tests of a
//     package; [End] belongs into its TestMain. Beside it is a namespace that is "outside": it reaches
//     the node's address, not Pods or Services.
//   - `make cluster-up` and `make cluster-down` do the same for a developer.
//
// A run that was killed leaves processes, namespaces and mounts behind; the next one ends them by what is
// noted in the cluster's folder.
package cluster
