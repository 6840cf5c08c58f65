// Command flux reads manifests and refuses what Flux's and Kustomize's own types do not know: fields that are
// misspelt, or of another type.
//
//	flux FILE…
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	helm "github.com/fluxcd/helm-controller/api/v2"
	kustomization "github.com/fluxcd/kustomize-controller/api/v1"
	source "github.com/fluxcd/source-controller/api/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	kustomize "sigs.k8s.io/kustomize/api/types"
	strict "sigs.k8s.io/yaml"
)

// types are the objects by apiVersion and kind.
var types = map[string]func() any{
	source.GroupVersion.String() + " OCIRepository":        func() any { return &source.OCIRepository{} },
	helm.GroupVersion.String() + " HelmRelease":            func() any { return &helm.HelmRelease{} },
	kustomization.GroupVersion.String() + " Kustomization": func() any { return &kustomization.Kustomization{} },
	kustomize.KustomizationVersion + " Kustomization":      func() any { return &kustomize.Kustomization{} },
}

func main() {
	failed := false
	for _, path := range os.Args[1:] {
		if err := check(path); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

func check(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
	for n := 0; ; n++ {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return errors.New("is empty")
			}
			return nil
		}
		if err != nil {
			return err
		}
		var is struct{ APIVersion, Kind string }
		if err := strict.Unmarshal(doc, &is); err != nil {
			return err
		}
		make, ok := types[is.APIVersion+" "+is.Kind]
		if !ok {
			return fmt.Errorf("%s %s is not known here", is.APIVersion, is.Kind)
		}
		if err := strict.UnmarshalStrict(bytes.TrimSpace(doc), make()); err != nil {
			return fmt.Errorf("%s: %w", is.Kind, err)
		}
	}
}
