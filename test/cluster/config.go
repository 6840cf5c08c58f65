package cluster

import (
	"bytes"
	"embed"
	"text/template"
)

//go:embed config
var configs embed.FS

// file is one of the folder config as it is.
func file(name string) []byte {
	b, err := configs.ReadFile("config/" + name)
	if err != nil {
		panic(err) // it is part of this program
	}
	return b
}

// fill is one of the folder config with its values.
func fill(name string, values any) []byte {
	var b bytes.Buffer
	if err := template.Must(template.New(name).Option("missingkey=error").Parse(string(file(name)))).Execute(&b, values); err != nil {
		panic(err) // so are its values
	}
	return b.Bytes()
}
