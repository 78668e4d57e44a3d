# SPDX-License-Identifier: Apache-2.0
"""What a Kubernetes cluster is given to run a job: `gangline k8s` writes it."""
